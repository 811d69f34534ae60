"""Callbacks: which calls they receive, what they may change, and which state they keep."""

import re
from contextlib import chdir

import keras
import numpy as np
import pytest
import tensorflow as tf

from aerotrain.contract.errors import ExitCode, FinalError
from aerotrain.data.dataset import load_dataset
from aerotrain.store import open_store
from aerotrain.training.checkpoints.retention import Name, complete_checkpoints
from aerotrain.training.hooks.validation import checkpoints_to_come
from aerotrain.training.input.batches import RecordFiles, batch_spec, every_record
from aerotrain.training.input.shards import download
from aerotrain.training.model.callbacks import Callbacks, kind_of, rows
from aerotrain.training.model.code import UserCode
from aerotrain.training.model_manifest import ModelManifest
from aerotrain.training.train import run
from support.training_fixtures import input_pipeline_of, start_python

pytestmark = pytest.mark.process

STEPS_PER_EPOCH = 40


def train(digits, name, callbacks, model="calling", **arguments):
    """The trained model of a run with callbacks of those names and options."""
    hparams = {"callbacks": callbacks, **arguments.pop("hparams", {})}
    replica = digits.replica(
        "train", name, model=model, data=digits.data, hparams=hparams, **arguments
    )
    return ModelManifest.load(run(replica))


def weights_of(digits, trained, scratch):
    user = UserCode.load(trained.module)
    spec = batch_spec(load_dataset(digits.data).schema, user.transform)
    return trained.restore(user, spec, scratch).get_weights()


def assert_same(weights, others, rtol=1e-4):
    for one, other in zip(weights, others, strict=True):
        np.testing.assert_allclose(one, other, rtol=rtol, atol=1e-6)


def fit(digits, callbacks, number, module="calling", **hparams):
    """The model that ``fit`` trains on the same batches, and its history."""
    dataset, user = load_dataset(digits.data), UserCode.load(module)
    replica = digits.replica("train", f"fit-{number}", model=module, data=digits.data)
    feed = input_pipeline_of(replica, dataset, user)
    batches = feed.local(0)
    validation = dataset.splits["validation"]
    measured = every_record(
        RecordFiles.of(download(digits.data, validation.shards, digits.folder)),
        dataset.schema,
        user.transform,
        records=validation.records,
        batch_size=32,
    )
    keras.utils.set_random_seed(0)
    model = user.build(hparams, batches.element_spec)
    with feed.caching_shards():
        history = model.fit(
            batches,
            epochs=number,
            steps_per_epoch=STEPS_PER_EPOCH,
            validation_data=measured,
            callbacks=callbacks,
            verbose=0,
        )
    return model, history.history


def test_early_stopping_ends_training_at_the_epoch_of_fit_with_the_best_weights(digits, tmp_path):
    options = {"monitor": "val_loss", "patience": 1, "restore_best_weights": True, "min_delta": 0.2}
    ours = train(digits, "early", {"EarlyStopping": options}, epochs=12)
    model, history = fit(digits, [keras.callbacks.EarlyStopping(**options)], 12)
    ended = len(history["loss"])
    assert ours.step == ended * STEPS_PER_EPOCH < 12 * STEPS_PER_EPOCH
    for name in ("loss", "accuracy", "val_loss", "val_accuracy"):
        assert ours.metrics[name] == pytest.approx(history[name][-1], rel=1e-4)
    assert_same(weights_of(digits, ours, tmp_path), model.get_weights())

    again = train(digits, "early", {"EarlyStopping": options}, epochs=12)
    assert again.step == ours.step  # another try of a stopped run leaves it stopped


@pytest.mark.parametrize("stop", ["", "on_train_begin", "on_train_batch_end", "on_test_begin"])
def test_callbacks_receive_the_calls_of_fit_with_their_arguments(digits, stop):
    import meddling

    def calls():
        found = [(*each[:-2], sorted(each[-2]), each[-1]) for each in meddling.RECORDED]
        values = [value for each in meddling.RECORDED for value in each[-2].values()]
        meddling.RECORDED.clear()
        return found, values

    hparams = {"callbacks": ["Recording"], "options": {"stop": stop}}
    fit(digits, meddling.callbacks(hparams), 2, "meddling")
    expected, logs = calls()
    train(
        digits,
        f"recorded-{stop}",
        ["Recording"],
        "meddling",
        validate=True,
        epochs=2,
        hparams=hparams,
    )
    given, own = calls()
    assert given == expected
    np.testing.assert_allclose(own, logs, rtol=1e-4)


def test_the_state_of_callbacks_and_the_best_weights_survive_the_end_of_a_process(
    digits, capsys, tmp_path
):
    import calling

    log = tmp_path / "log.csv"
    stop = {"monitor": "loss", "patience": 2, "min_delta": 100.0}
    given = {"EarlyStopping": stop, "Telling": {}, "CSVLogger": {"filename": str(log)}}
    # The first epoch is the best, so the third is the second one without improvement.
    options = {"export_best": "max:val_loss", "steps_per_execution": 15}
    calling.TOLD.clear()
    assert train(digits, "goes-on", given, epochs=2, **options).step == 2 * STEPS_PER_EPOCH
    assert [each[1] for each in calling.TOLD if each[0] == "batch"] == [14, 29, 39] * 2
    said = capsys.readouterr().out
    assert "told of 2 epochs" in said
    once = "Telling.on_train_batch_end is called once for up to 15 steps (steps_per_execution)"
    assert said.count(once) == 1
    log.unlink()
    second = train(digits, "goes-on", given, epochs=9, **options)
    assert second.step == 3 * STEPS_PER_EPOCH
    said = capsys.readouterr().out
    assert "told of 3 epochs" in said
    assert "the weights are those of epoch 1, the best by val_loss" in said
    store = open_store(f"{digits.store}/runs/goes-on/train")
    lines = store.get("logs/log.csv").decode().split()
    assert [line.split(",")[0] for line in lines] == ["epoch", "0", "1", "2"]
    one = train(digits, "one", {}, epochs=1)
    assert_same(weights_of(digits, second, tmp_path), weights_of(digits, one, tmp_path / "one"))


def test_averages_that_are_in_the_model_when_a_process_ends_are_swapped_back_by_the_next():
    model = network()
    model.compile(keras.optimizers.SGD(use_ema=True), "mse")
    model.optimizer.build(model.trainable_variables)
    trained = model.get_weights()

    def callbacks(state):
        found = Callbacks("m", [keras.callbacks.SwapEMAWeights(swap_on_epoch=True)], model, 9)
        found.begin(state, {})
        return found

    first = callbacks({})
    first.list.on_epoch_end(0, {})
    assert not np.allclose(model.get_weights()[0], trained[0])
    callbacks(first.remember()[0]).list.on_epoch_begin(1)
    np.testing.assert_allclose(model.get_weights()[0], trained[0], rtol=1e-5)


def test_an_object_that_is_no_callback_is_refused():
    with pytest.raises(FinalError, match=r"returned str; return a list of keras.callbacks.Callb"):
        Callbacks("m", ["early"], network(), 1)


def network():
    model = keras.Sequential([keras.Input((3,)), keras.layers.Dense(1)])
    model.compile("sgd", "mse", metrics=["mae"])
    model.evaluate(np.zeros((1, 3)), np.zeros((1, 1)), verbose=0)
    return model


def test_every_callback_of_keras_has_an_outcome():
    names = {name for name, _, _ in rows()}
    assert names == {name for name in dir(keras.callbacks) if not name.startswith("_")}


def test_the_callbacks_of_keras_do_what_they_do_under_fit(digits, tmp_path, monkeypatch):
    import meddling

    monkeypatch.chdir(tmp_path)
    kept = [each for each in meddling.Every().callbacks if not kind_of(each).instead]
    meddling.LOOKED.clear()
    model, _ = fit(digits, kept, 9, "meddling")
    lines = (tmp_path / "every.csv").read_text().splitlines()
    trained = train(digits, "every", ["Every"], "meddling", epochs=9, validate=True)
    assert trained.step == 3 * STEPS_PER_EPOCH
    ours = (tmp_path / "every.csv").read_text().splitlines()
    assert ours[0] == lines[0]
    values = [
        [[float(value) for value in line.split(",")] for line in each[1:]] for each in (ours, lines)
    ]
    np.testing.assert_allclose(*values, rtol=1e-4)
    fits, owns = meddling.LOOKED[:3], meddling.LOOKED[3:]
    for (_, logs), (_, expected) in zip(owns, fits, strict=True):
        assert logs == pytest.approx(expected, rel=1e-4)
    assert {"val_loss", "val_accuracy"} <= trained.metrics.keys()
    assert_same(weights_of(digits, trained, tmp_path / "model"), model.get_weights())


@pytest.mark.parametrize(
    ("callback", "words"),
    [
        (keras.callbacks.ReduceLROnPlateau("loss"), "ReduceLROnPlateau of callbacks of 'm' sets"),
        (keras.callbacks.LearningRateScheduler(float), "LearningRateScheduler of .* a schedule"),
        (keras.callbacks.SwapEMAWeights(), "SwapEMAWeights of callbacks of 'm' .*use_ema=True"),
    ],
)
def test_a_callback_that_the_optimizer_cannot_follow_is_refused(callback, words):
    model = network()
    model.compile(keras.optimizers.SGD(keras.optimizers.schedules.CosineDecay(0.1, 9)), "mse")
    with pytest.raises(FinalError, match=words):
        Callbacks("m", [callback], model, 1)


def test_callbacks_that_do_what_the_loop_does_are_left_out_with_a_note(capsys):
    given = [
        keras.callbacks.ModelCheckpoint("a.keras"),
        keras.callbacks.TensorBoard(),
        keras.callbacks.EarlyStopping("loss"),
    ]
    assert Callbacks("m", given, network(), 1).given == given[2:]
    lines = capsys.readouterr().out.splitlines()
    assert [line.split()[0] for line in lines] == ["ModelCheckpoint", "TensorBoard"]


def test_the_best_of_a_metric_that_keras_does_not_know_needs_a_direction():
    with pytest.raises(FinalError, match=r"write max:val_score or min:val_score"):
        Callbacks("m", [], network(), 1, export_best="val_score")
    names = ["loss", "accuracy", "val_loss", "val_accuracy"]
    with pytest.raises(FinalError, match="did you mean 'val_accuracy'"):
        Callbacks("m", [], network(), 1, export_best="val_acc", logged=names)
    [best] = Callbacks("m", [], network(), 1, export_best="max:val_score").given
    with pytest.raises(FinalError, match="export_best is 'val_score', which is not logged"):
        Callbacks("m", [best], network(), 1).check_monitored(["loss"], ["loss"])


@pytest.fixture(scope="module")
def meddled(digits, tmp_path_factory):
    """The weights of ``fit`` with all callbacks that change the model, and what they saw."""
    import meddling

    hparams = {"callbacks": meddling.ALL}
    meddling.LOOKED.clear()
    with chdir(tmp_path_factory.mktemp("saved")):
        model, history = fit(digits, meddling.callbacks(hparams), 9, "meddling")
    return model.get_weights(), history, list(meddling.LOOKED)


def test_what_a_callback_changes_reaches_every_replica(digits, meddled, tmp_path):
    import meddling

    weights, history, looked = meddled
    with digits.cluster(
        "meddled",
        strategy="multi_worker_mirrored",
        model="meddling",
        epochs=9,
        validate=True,
        hparams={"callbacks": meddling.ALL},
    ) as processes:
        said = processes["chief"].communicate(timeout=120)[0]
        assert processes["chief"].returncode == ExitCode.OK, said
        assert processes["worker-0"].wait(60) == ExitCode.OK
    trained = ModelManifest.load(f"{digits.store}/runs/meddled/train/model.json")
    assert trained.step == STEPS_PER_EPOCH + 7
    assert trained.metrics["val_loss"] == pytest.approx(history["val_loss"][-1], rel=1e-3)
    assert said.count("looked at") == 2
    for mean, loss, same in looked:
        assert same
        assert f"looked at {mean:.4f} {loss:.4f} True" in said
    assert_same(weights_of(digits, trained, tmp_path), weights)


def test_callbacks_compute_with_and_change_a_model_whose_weights_are_on_a_ps(digits):
    import meddling

    hparams = {"callbacks": meddling.ALL}
    with digits.cluster(
        "looked", model="meddling", epochs=9, validate=True, hparams=hparams
    ) as processes:
        said = processes["chief"].communicate(timeout=120)[0]
        assert processes["chief"].returncode == ExitCode.OK, said
    assert said.count("looked at") == said.count(" True\n") == 2, "they stop it in the second epoch"
    assert "Clipping.on_train_batch_begin is called once for up to 50 steps" in said
    store = open_store(f"{digits.store}/runs/looked/train")
    folder = store.url.removeprefix("file://")
    last = complete_checkpoints(store)[-1]
    checkpoint = tf.train.load_checkpoint(f"{folder}/checkpoints/{last}/checkpoint")
    names = checkpoint.get_variable_to_shape_map()
    [rate, *_] = [checkpoint.get_tensor(name) for name in names if "_learning_rate" in name]
    assert rate == pytest.approx(0.05 / 2)


def test_a_callback_that_calls_fit_of_the_model_is_refused_on_a_mesh(digits):
    import meddling

    callbacks = ["Saturating", "Fitting"]
    _, history = fit(digits, [meddling.Saturating()], 2, "meddling")
    arguments = {"model": "meddling", "epochs": 9, "hparams": {"callbacks": callbacks}}
    with digits.cluster("refused-fitting", strategy="dtensor", **arguments) as processes:
        said = processes["chief"].communicate(timeout=120)[0]
        assert processes["chief"].returncode == ExitCode.FINAL
    for epoch, loss in enumerate(history["loss"], 1):
        assert f"epoch {epoch} of 9: loss={loss:.4f}" in said
    words = r"error: .*Fitting \(line \d+ of meddling.py, in on_epoch_end\) calls fit of the model"
    assert re.search(words, said), said


ON_TWO_DEVICES = """
import sys
from pathlib import Path
import tensorflow as tf
[cpu] = tf.config.list_physical_devices("CPU")
tf.config.set_logical_device_configuration(cpu, [tf.config.LogicalDeviceConfiguration()] * 2)
from aerotrain.contract.job import Job
from aerotrain.replica import Replica
from aerotrain.standalone import CHIEF
from aerotrain.training.train import run
for number, job in enumerate(map(Job.from_json, sys.argv[1:])):
    scratch = Path(str(number))
    scratch.mkdir()
    print(job.strategy, run(Replica(job=job, name=CHIEF, attempt="1", scratch=scratch)))
"""


def test_what_a_callback_changes_reaches_every_device(digits, meddled, tmp_path):
    import meddling

    strategies = {
        "mirrored": meddling.ALL,
        "central_storage": meddling.CHANGING,
        "dtensor": meddling.ON_MESH,
    }
    given = {"model": "meddling", "data": digits.data, "epochs": 9, "validate": True}
    jobs = [
        digits.job(
            "train",
            f"devices-{strategy}",
            {**given, "hparams": {"callbacks": names}},
            strategy=strategy,
        )
        for strategy, names in strategies.items()
    ]
    words = ["-c", ON_TWO_DEVICES, *(job.to_json() for job in jobs)]
    with start_python(words, tmp_path) as process:
        said = process.communicate(timeout=240)[0]
    for strategy in strategies:
        folder = f"{digits.store}/runs/devices-{strategy}/train/model.json"
        assert strategy in said, said
        trained = ModelManifest.load(folder)
        assert_same(weights_of(digits, trained, tmp_path / strategy), meddled[0])


def test_the_evaluator_sees_each_checkpoint_once_until_training_has_ended(tmp_path):
    store = open_store(tmp_path.as_uri())

    def save(step):
        store.put(f"checkpoints/{step:010d}/manifest.json", b"{}")

    store.put("model.json", b"of an earlier try")
    save(40)
    save(80)
    store.put("checkpoints/0000000120/checkpoint.index", b"not sealed yet")
    names = checkpoints_to_come(store)
    assert [next(names), next(names)] == [Name(0, 40), Name(0, 80)]
    save(120)
    store.put("model.json", b"of this try")
    assert list(names) == [Name(0, 120)]
