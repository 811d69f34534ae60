"""A training that is ended at any step, in any way, resumes there and loses nothing."""

import json
import random
import signal

import numpy as np
import pytest

from aerotrain.contract.errors import ExitCode, FinalError
from aerotrain.contract.event_log import EventType, read
from aerotrain.contract.layout import CHIEF_LOG, LEASE
from aerotrain.contract.status import Progress
from aerotrain.data.dataset import load_dataset
from aerotrain.store import CorruptError, open_store, publish
from aerotrain.training.checkpoints.checkpoints import restore_weights
from aerotrain.training.checkpoints.retention import Name, complete_checkpoints
from aerotrain.training.input.batches import batch_spec
from aerotrain.training.model.code import UserCode
from aerotrain.training.model_manifest import ModelManifest
from aerotrain.training.train import run
from support.training_fixtures import MODELS, read_until, start_python

pytestmark = pytest.mark.process

EPOCHS = 6
STEPS = EPOCHS * 40

#: How these tests train a gang: it may be ended at any execution.
GANG = {
    "strategy": "multi_worker_mirrored",
    "model": "tallying",
    "epochs": EPOCHS,
    "steps_per_execution": 7,
    "checkpoint_interval": 0.05,
}

#: Steps after which a training is ended; drawn once, so that a failure can be reproduced.
RANDOM = random.Random(5)


def store_of(digits, name):
    return open_store(f"{digits.store}/runs/{name}/train")


def weights_of(digits, name):
    trained = ModelManifest.load(f"{store_of(digits, name).url}/model.json")
    spec = batch_spec(load_dataset(digits.data).schema, UserCode.load("tallying").transform)
    digits.started.append(name)
    scratch = digits.folder / "weights" / str(len(digits.started))
    return trained.restore(UserCode.load("tallying"), spec, scratch).get_weights()


def assert_never_ended(digits, name, whole):
    """Assert that the run ``name`` has the results of the uninterrupted run ``whole``."""
    one, other = (
        ModelManifest.load(f"{store_of(digits, each).url}/model.json") for each in (name, whole)
    )
    assert one.step == other.step == STEPS
    assert one.metrics["accuracy"] > 0.9
    # The tally is exact: each record of the last epoch was read once, by whichever process.
    assert one.metrics["tally"] == other.metrics["tally"]
    assert one.metrics == pytest.approx(other.metrics, rel=1e-3)
    for mine, theirs in zip(weights_of(digits, name), weights_of(digits, whole), strict=True):
        np.testing.assert_allclose(mine, theirs, rtol=1e-3, atol=1e-4)


@pytest.fixture(scope="module")
def whole(digits):
    """A function that returns the name of an uninterrupted run under a strategy."""
    done = {}

    def run(strategy):
        name = f"whole-{strategy.replace('_', '-')}"
        if strategy in done:
            return name
        done[strategy] = name
        if strategy == "multi_worker_mirrored":
            with digits.cluster(name, **GANG) as processes:
                assert processes["chief"].wait(200) == ExitCode.OK
        else:
            with by_hand(digits, name, strategy, **{"checkpoint-interval": 3600}) as process:
                read_until(process, "the trained model is")
        return name

    return run


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


def test_a_training_killed_at_any_step_has_the_results_of_an_uninterrupted_one(digits, whole):
    with by_hand(digits, "resumed", "one_device") as process:
        saved_after(process, RANDOM.randrange(20, STEPS - 60))
        process.kill()
    store_of(digits, "resumed").delete(LEASE)  # other tests wait for its expiry
    with by_hand(digits, "resumed", "one_device") as process:
        said = read_until(process, "the trained model is")
    assert "resuming from the checkpoint of step" in said
    assert_never_ended(digits, "resumed", whole("one_device"))


def test_a_gang_whose_member_is_killed_has_the_results_of_an_uninterrupted_one(digits, whole):
    with digits.cluster("killed-gang", **GANG) as processes:
        saved_after(processes["chief"], RANDOM.randrange(20, STEPS - 100))
        processes["worker-0"].kill()
        assert processes["chief"].wait(60) == ExitCode.TEMPORARY
    with digits.cluster("killed-gang", **GANG) as processes:
        said = processes["chief"].communicate(timeout=200)[0]
        assert "resuming from the checkpoint of step" in said
        assert processes["chief"].returncode == ExitCode.OK, said
    assert_never_ended(digits, "killed-gang", whole("multi_worker_mirrored"))


def test_a_preempted_training_saves_its_steps_and_ends(digits, whole):
    with by_hand(digits, "told-to-go", "one_device", **{"checkpoint-interval": 3600}) as process:
        read_until(process, "epoch 2 of")
        process.terminate()
        said = process.communicate(timeout=60)[0]
        assert process.returncode == ExitCode.TERMINATED, said
    step = int(said.split("preempted after step ")[1].split(",")[0])
    store = store_of(digits, "told-to-go")
    assert complete_checkpoints(store) == [Name(1, step)]
    with by_hand(digits, "told-to-go", "one_device") as process:
        assert f"resuming from the checkpoint of step {step}" in read_until(
            process, "trained model"
        )
    assert_never_ended(digits, "told-to-go", whole("one_device"))
    entries = read(store.get(CHIEF_LOG).decode().splitlines())
    events = [each.event for each in entries]
    assert events.count(EventType.START) == 2
    assert [each.step for each in entries if each.event is EventType.PREEMPTED] == [step]
    assert [each.step for each in entries if each.event is EventType.RESTORE] == [0, step]
    assert (events[-1], entries[-1].step) == (EventType.END, STEPS)


def test_a_gang_with_a_preempted_member_saves_and_ends_together(digits):
    common = {**GANG, "epochs": 2000, "checkpoint_interval": 3600}
    with digits.cluster("preempted-gang", **common) as processes:
        read_until(processes["chief"], "epoch 2 of")
        processes["worker-0"].send_signal(signal.SIGTERM)
        said = {each: process.communicate(timeout=60)[0] for each, process in processes.items()}
        codes = {each: process.returncode for each, process in processes.items()}
    assert set(codes.values()) == {ExitCode.TERMINATED}, said
    [saved] = complete_checkpoints(store_of(digits, "preempted-gang"))
    for words in said.values():
        assert f"preempted after step {saved.step}, which is saved" in words


def test_with_parameter_servers_a_preempted_chief_saves_and_a_preempted_worker_ends_at_once(digits):
    arguments = {"model": "small", "epochs": 2000, "checkpoint_interval": 3600}
    with digits.cluster("told-servers", **arguments) as processes:
        read_until(processes["chief"], "epoch 2 of")
        processes["worker-1"].terminate()
        assert processes["worker-1"].wait(30) == ExitCode.TERMINATED
        processes["chief"].terminate()
        said = processes["chief"].communicate(timeout=60)[0]
        assert processes["chief"].returncode == ExitCode.TERMINATED, said
    assert len(complete_checkpoints(store_of(digits, "told-servers"))) == 1


def test_a_damaged_checkpoint_is_named_and_the_one_before_it_is_used(digits, capfd):
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
    url = run(digits.replica("train", "damaged", epochs=3, steps_per_execution=20, **common))
    said = capfd.readouterr().out
    assert f"the checkpoint of step {newest.step} is damaged" in said
    assert "the checkpoint of step 999 was not uploaded to its end" in said
    assert f"resuming from the checkpoint of step {before.step}" in said
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


@pytest.mark.parametrize(
    ("hparams", "message"),
    [
        ({"units": 48}, r"kernel was of shape \(64, 32\) and is of shape \(64, 48\); undo the"),
    ],
)
def test_a_checkpoint_of_another_model_names_the_variable(digits, hparams, message):
    from aerotrain.training.checkpoints.metadata import check_same_model, model_config

    one, other = (UserCode.load("small").build_model(each) for each in ({}, hparams))
    for model in (one, other):
        model.build((None, 8, 8))
    about = {"model": model_config(one), "setting": {"strategy": "mirrored"}}
    with pytest.raises(FinalError, match=f"file:///c, made under 'mirrored', is of .*{message}"):
        check_same_model("file:///c", about, {"strategy": "one_device"}, other)
    check_same_model("file:///c", about, {"strategy": "one_device"}, one)


def test_a_training_may_resume_under_another_strategy_and_prints_what_changed(digits):
    hparams = {"noise": 0.01}
    common = {"model": "tallying", "data": digits.data, "hparams": hparams}
    before = digits.replica("train", "elsewhere", epochs=2, **common)
    run(before)
    before.lease.release()  # otherwise the next launch waits until it expires
    with by_hand(digits, "elsewhere", "mirrored") as process:
        said = read_until(process, "the trained model is")
    assert "in another cluster: strategy was 'one_device' and is 'mirrored'" in said
    lines = [seen for line in said.splitlines() if (seen := Progress.parse(line))]
    assert lines[-1].step == STEPS


def test_a_process_that_ends_just_before_a_signal_is_no_error(tmp_path, monkeypatch):
    with start_python(["-c", ""], tmp_path) as process:
        process.wait(60)
        with monkeypatch.context() as before:
            before.setattr(type(process), "returncode", None)  # it is waited for, but not yet read
            process.kill()
            process.terminate()
