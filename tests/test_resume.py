"""A training that is ended at any step, in any way, resumes there and loses nothing."""

import json
import random
import signal
from contextlib import nullcontext

import numpy as np
import pytest

from aerotrain.contract.errors import ExitCode, FinalError
from aerotrain.contract.event_log import EventType, read
from aerotrain.contract.layout import CHIEF_LOG, LEASE
from aerotrain.contract.status import Progress
from aerotrain.contract.training import TrainArguments
from aerotrain.data.dataset import load_dataset
from aerotrain.store import CorruptError, StoreUnavailable, open_store, publish
from aerotrain.training.checkpoints.checkpoints import restore_weights
from aerotrain.training.checkpoints.metadata import (
    check_same_training,
    model_config,
    training_config,
)
from aerotrain.training.checkpoints.retention import Name, Retention, complete_checkpoints
from aerotrain.training.input.batches import batch_spec
from aerotrain.training.model.code import UserCode
from aerotrain.training.model_manifest import ModelManifest
from aerotrain.training.train import run
from support.training_fixtures import MODELS, read_until, start_python

pytestmark = pytest.mark.process

#: Of a training alone, which is fast, and of a gang, each of so many steps.
EPOCHS, GANG_EPOCHS, STEPS = 12, 6, 40

#: How these tests train a gang: it may be ended at any execution.
GANG = {
    "strategy": "multi_worker_mirrored",
    "model": "tallying",
    "epochs": GANG_EPOCHS,
    "steps_per_execution": 7,
    "checkpoint_interval": 0.05,
}

#: Steps after which a training is ended; drawn once, so that a failure can be reproduced.
RANDOM = random.Random(5)


def store_of(digits, name):
    return open_store(f"{digits.store}/runs/{name}/train")


def weights_of(digits, name):
    trained = ModelManifest.load(f"{store_of(digits, name).url}/model.json")
    user = UserCode.load("tallying")
    spec = batch_spec(load_dataset(digits.data).schema, user.transform)
    return trained.restore(user, spec, digits.folder / "weights" / name).get_weights()


def assert_never_ended(digits, name, whole):
    """Assert that the run ``name`` has the results of the uninterrupted run ``whole``."""
    one, other = (
        ModelManifest.load(f"{store_of(digits, each).url}/model.json") for each in (name, whole)
    )
    assert one.step == other.step
    assert one.metrics["accuracy"] > 0.9
    # The tally is exact: each record of the last epoch was read once, by whichever process.
    assert one.metrics["tally"] == other.metrics["tally"]
    assert one.metrics == pytest.approx(other.metrics, rel=1e-3)
    for mine, theirs in zip(weights_of(digits, name), weights_of(digits, whole), strict=True):
        np.testing.assert_allclose(mine, theirs, rtol=1e-3, atol=1e-4)


def by_hand(digits, name, strategy, **arguments):
    """The process of a manual run, on two devices if the strategy uses several."""
    given = {"checkpoint-interval": 0.05, "steps-per-execution": 7, "epochs": EPOCHS, **arguments}
    given["hparams"] = '{"noise": 0.01}'
    words = ["train", "--run", name, "--strategy", strategy, "--model", "tallying"]
    words += ["--code", str(MODELS), "--data", digits.data, "--store", digits.store]
    words += [str(each) for key, value in given.items() for each in (f"--{key}", value)]
    devices = 2 if strategy == "mirrored" else 1
    code = (
        "import tensorflow as tf; from aerotrain.standalone.cli import main\n"
        "[cpu] = tf.config.list_physical_devices('CPU')\n"
        f"devices = [tf.config.LogicalDeviceConfiguration()] * {devices}\n"
        "tf.config.set_logical_device_configuration(cpu, devices)\n"
        f"main({words})"
    )
    return start_python(["-c", code], digits.folder)


def saved_after(process, step):
    """Read until a checkpoint of ``step`` steps or more is in the store."""
    while True:
        said = read_until(process, "is in the store").splitlines()[-1]
        if int(said.split("of step ")[1].split()[0]) >= step:
            return


def test_a_training_killed_and_preempted_at_any_step_has_the_results_of_an_uninterrupted_one(
    digits,
):
    with by_hand(digits, "whole", "one_device", **{"checkpoint-interval": 3600}) as process:
        read_until(process, "the trained model is")
    with by_hand(digits, "ended", "one_device") as process:
        saved_after(process, RANDOM.randrange(20, EPOCHS * STEPS // 2))
        process.kill()
    store = store_of(digits, "ended")
    store.delete(LEASE)  # other tests wait for its expiry
    killed = complete_checkpoints(store)[-1]
    with by_hand(digits, "ended", "one_device", **{"checkpoint-interval": 3600}) as process:
        read_until(process, "resuming from the checkpoint of step")
        read_until(process, "progress step=")
        process.terminate()
        said = process.communicate(timeout=240)[0]
        assert process.returncode == ExitCode.TERMINATED, said
    step = int(said.split("preempted after step ")[1].split(",")[0])
    assert complete_checkpoints(store)[-1] == Name(2, step)
    with by_hand(digits, "ended", "one_device") as process:
        said = read_until(process, "trained model")
        assert f"resuming from the checkpoint of step {step}" in said
    assert_never_ended(digits, "ended", "whole")
    entries = read(store.get(CHIEF_LOG).decode().splitlines())
    assert [each.event for each in entries].count(EventType.START) == 3
    assert [each.step for each in entries if each.event is EventType.PREEMPTED] == [step]
    restored = [each.step for each in entries if each.event is EventType.RESTORE]
    assert restored == [0, killed.step, step]
    assert (entries[-1].event, entries[-1].step) == (EventType.END, EPOCHS * STEPS)
    # Another strategy goes on.
    with by_hand(digits, "ended", "mirrored", epochs=EPOCHS + 1) as process:
        said = read_until(process, "the trained model is")
    assert f"resuming from the checkpoint of step {EPOCHS * STEPS}" in said
    lines = [seen for line in said.splitlines() if (seen := Progress.parse(line))]
    assert lines[-1].step == (EPOCHS + 1) * STEPS


def test_a_gang_whose_member_is_preempted_has_the_results_of_an_uninterrupted_one(digits):
    with digits.cluster("whole-gang", **GANG) as processes:
        assert processes["chief"].wait(200) == ExitCode.OK
    with digits.cluster("ended-gang", **GANG) as processes:
        saved_after(processes["chief"], RANDOM.randrange(20, GANG_EPOCHS * STEPS // 2))
        processes["worker-0"].send_signal(signal.SIGTERM)
        said = {each: process.communicate(timeout=240)[0] for each, process in processes.items()}
        codes = {each: process.returncode for each, process in processes.items()}
    assert set(codes.values()) == {ExitCode.TERMINATED}, said
    saved = complete_checkpoints(store_of(digits, "ended-gang"))[-1]
    for words in said.values():
        assert f"preempted after step {saved.step}, which is saved" in words
    with digits.cluster("ended-gang", **GANG) as processes:
        said = processes["chief"].communicate(timeout=200)[0]
        assert f"resuming from the checkpoint of step {saved.step}" in said
        assert processes["chief"].returncode == ExitCode.OK, said
    assert_never_ended(digits, "ended-gang", "whole-gang")


def test_with_parameter_servers_a_preempted_chief_saves_and_a_preempted_worker_ends_at_once(digits):
    arguments = {"model": "small", "epochs": 2000, "checkpoint_interval": 3600}
    with digits.cluster("told-servers", **arguments) as processes:
        read_until(processes["chief"], "epoch 2 of")
        processes["worker-1"].terminate()
        assert processes["worker-1"].wait(30) == ExitCode.TERMINATED
        processes["chief"].terminate()
        said = processes["chief"].communicate(timeout=240)[0]
        assert processes["chief"].returncode == ExitCode.TERMINATED, said
    assert len(complete_checkpoints(store_of(digits, "told-servers"))) == 1


def test_a_damaged_checkpoint_is_named_and_the_one_before_it_is_used(digits, capfd, monkeypatch):
    common = {"model": "small", "data": digits.data, "checkpoint_interval": 1e-6}
    run(digits.replica("train", "damaged", epochs=2, steps_per_execution=20, **common))
    folder = digits.folder / "store/runs/damaged/train/checkpoints"
    before, newest = complete_checkpoints(store_of(digits, "damaged"))[-2:]
    [content] = (folder / str(newest)).glob("checkpoint.data*")
    damaged = bytearray(content.read_bytes())
    damaged[100] ^= 1
    content.write_bytes(damaged)
    (folder / "0000000999").mkdir()
    (folder / "0000000999" / "checkpoint.index").write_bytes(b"cut short")
    capfd.readouterr()
    drop, outages = Retention.drop, iter([StoreUnavailable("the store is away")])

    def drop_later(retention):
        for outage in outages:
            raise outage
        drop(retention)

    monkeypatch.setattr(Retention, "drop", drop_later)
    url = run(digits.replica("train", "damaged", epochs=3, steps_per_execution=20, **common))
    said = capfd.readouterr().out
    assert f"the checkpoint of step {newest.step} is damaged" in said
    assert f"resuming from the checkpoint of step {before.step}" in said
    assert "the store is away; training continues" in said
    assert ModelManifest.load(url).step == 120
    names = complete_checkpoints(store_of(digits, "damaged"))
    assert (len(names), names[-1]) == (3, Name(2, 120))
    assert not (folder / "0000000999" / "checkpoint.index").exists()


@pytest.mark.parametrize("missing", ["checkpoint.index", "checkpoint.data-00000-of-00001", None])
def test_a_checkpoint_whose_manifest_lacks_files_is_not_used(tmp_path, missing):
    names = ["checkpoint.index", "checkpoint.data-00000-of-00001", "beside/random"]
    made = tmp_path / "made"
    for name in names:
        (made / name).parent.mkdir(parents=True, exist_ok=True)
        (made / name).write_bytes(b"content")
    store = open_store((tmp_path / "store").as_uri())
    publish(store, made, "", {})
    manifest = json.loads(store.get("manifest.json"))
    manifest["files"] = {} if missing is None else manifest["files"]
    manifest["files"].pop(missing, None)
    store.put("manifest.json", json.dumps(manifest).encode())
    with pytest.raises(CorruptError, match=r"lists no file|does not list all files"):
        restore_weights(None, store, tmp_path / "fetched")


def test_a_manifest_that_points_outside_its_prefix_is_refused(digits):
    common = {"model": "small", "data": digits.data}
    run(digits.replica("train", "outside", epochs=1, **common))
    path = digits.folder / "store/runs/outside/train/checkpoints/0001-0000000040/manifest.json"
    manifest = json.loads(path.read_text())
    manifest["files"]["../../model.json"] = next(iter(manifest["files"].values()))
    path.write_text(json.dumps(manifest))
    words = r"0000000040/manifest.json.*'../../model.json' is not a valid key"
    with pytest.raises(FinalError, match=words):
        run(digits.replica("train", "outside", epochs=2, **common))


#: What may change in a training whose checkpoint is used, and the error if it must not.
CHANGES = [
    ({}, {"epochs": 9, "gradient_accumulation_steps": 2, "checkpoint_interval": 9.0}, None),
    ({"precision": "float32"}, {}, "precision was 'float32' and is not given"),
    ({}, {"seed": 1, "batch_size": 16}, "training: batch_size was 32 and is 16; seed was 0 and is"),
    ({}, {"hparams": {"units": 48}}, "units was 32 and is 48; begin a new run"),
    ({}, {"class_weight": {"3": 2.0}}, "class_weight was {} and is {'3': 2.0}"),
    ({}, {"drop_remainder": True}, "drop_remainder was False and is True"),
    ({}, {"synchronized_batch_norm": True}, "synchronized_batch_norm was False and is True"),
]


@pytest.mark.parametrize(("more", "changes", "message"), CHANGES)
def test_a_checkpoint_of_another_training_is_refused(digits, more, changes, message):
    was = {"model": "small", "data": digits.data, "hparams": {"units": 32}}
    arguments, now = (TrainArguments.from_dict({**was, **each}) for each in ({}, changes))
    model = built(units=32)
    recipe = {**training_config(arguments), **more}
    about = {"recipe": recipe, "code": {}, "model": model_config(model)}
    with pytest.raises(FinalError, match=message) if message else nullcontext():
        check_same_training("file:///c", about, now, model)


def built(**hparams):
    model = UserCode.load("small").build_model(hparams)
    model.build((None, 8, 8))
    return model


def test_a_checkpoint_of_another_model_names_the_variable(digits):
    arguments = TrainArguments(model="small", data=digits.data)
    recipe, model = training_config(arguments), model_config(built())
    about = {"recipe": recipe, "code": {}, "model": model}
    with pytest.raises(
        FinalError, match=r"kernel was of shape \(64, 32\) and is .*\(64, 48\); undo"
    ):
        check_same_training("file:///c", about, arguments, built(units=48))
    model["variables"].append(["more/kernel", [3]])
    with pytest.raises(FinalError, match=r"it had more/kernel of shape \(3,\), which there is no"):
        check_same_training("file:///c", about, arguments, built())


def test_a_process_that_ends_just_before_a_signal_is_no_error(tmp_path, monkeypatch):
    with start_python(["-c", ""], tmp_path) as process:
        process.wait(60)
        with monkeypatch.context() as before:
            before.setattr(type(process), "returncode", None)  # it is waited for, but not yet read
            process.kill()
            process.terminate()
