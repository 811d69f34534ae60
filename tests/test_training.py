"""Training: exact steps, every rejection, and real clusters."""

import json
import threading
from pathlib import Path
from queue import Queue
from types import SimpleNamespace

import pytest
import tensorflow as tf

from aerotrain.contract.errors import ExitCode, FinalError
from aerotrain.contract.status import Progress
from aerotrain.contract.strategy import STRATEGIES
from aerotrain.contract.training import TrainArguments
from aerotrain.data.dataset import load_dataset
from aerotrain.store import CorruptError, open_store
from aerotrain.training.background.writers import Interval
from aerotrain.training.hooks.report import Pace
from aerotrain.training.input.batches import parse
from aerotrain.training.input.order import Schedule
from aerotrain.training.input.shards import download
from aerotrain.training.model_manifest import ModelManifest
from aerotrain.training.step_runner import LocalStepRunner
from aerotrain.training.strategies import ENGINES
from aerotrain.training.train import run
from support.training_fixtures import read_until

pytestmark = pytest.mark.process

STEPS_PER_EPOCH = 40  # the digits' train split, 1,249 records, in batches of 32


def test_both_tables_of_strategies_have_the_same_names():
    assert ENGINES.keys() == STRATEGIES.keys()


def test_the_end_of_a_training_does_not_wait_until_its_input_is_released():
    released_by = Queue()

    class Batches:  # of tf.data, the destructor may take a minute
        def __iter__(self):
            return self

        def __next__(self):
            raise StopIteration

        def __del__(self):
            released_by.put(threading.current_thread())

    distribution = ENGINES["one_device"].build(TrainArguments(model="here", data=""))
    step = SimpleNamespace(metrics=SimpleNamespace(zero=[]))
    LocalStepRunner(distribution, step, Batches(), per_execution=1).close()
    assert released_by.get(timeout=60) is not threading.current_thread()


def test_a_smaller_last_batch_is_a_step_and_counts_with_the_records_it_has():
    schedule = Schedule(records=1249, batch_size=32, epochs=3)
    assert (schedule.steps_per_epoch, schedule.steps) == (40, 120)
    assert (schedule.position(85), schedule.position(80)) == ((2, 5), (2, 0))
    assert [schedule.records_after(step) for step in (0, 1, 39, 40, 41)] == [
        0,
        32,
        1248,
        1249,
        1281,
    ]


def test_a_model_of_one_batch_size_trains_without_the_remainder_or_is_refused(digits):
    arguments = {"model": "fixed", "data": digits.data, "validate": True, "epochs": 2}
    with pytest.raises(FinalError, match=r"batches of 32 records.* would have 1; set drop_rem"):
        run(digits.replica("train", "remaining", **arguments))
    with pytest.raises(FinalError, match=r"batch_size is 64, cut into 1; use 32"):
        run(digits.replica("train", "too-large", batch_size=64, **arguments))
    trained = run(digits.replica("train", "dropped", drop_remainder=True, **arguments))
    assert ModelManifest.load(trained).step == 2 * (STEPS_PER_EPOCH - 1)
    assert ModelManifest.load(trained).metrics["val_loss"] > 0


@pytest.mark.parametrize(
    ("seconds", "most", "due"),
    [(10, None, [10, 20, 30, 40, 50]), (1, 10, [1, 3, 7, 15, 25, 35, 45, 55])],
)
def test_an_interval_is_due_once_per_period_which_may_grow(seconds, most, due):
    now = [0.0]
    every = Interval(seconds, lambda: now[0], most=most)
    found = []
    for now[0] in range(1, 60):
        found += [now[0]] if every.due() else []
    assert found == due


def test_the_pace_is_that_of_the_latest_progress():
    pace = Pace()
    assert pace.at(0.0, 3200) is None  # the first steps include the compilation
    assert pace.at(2.0, 3520) == 160.0
    for second in range(3, 30):
        last = pace.at(second, 3520 + 320 * second)
    assert last == 320.0


def test_progress_is_readable_by_people_programs_and_tensorboard(digits, trained, capfd):
    url = run(digits.replica("train", "said", model="small", data=digits.data, epochs=2))
    lines = capfd.readouterr().out.splitlines()
    progress = [seen for line in lines if (seen := Progress.parse(line))]
    assert (progress[-1].step, progress[-1].steps, progress[-1].seconds_left) == (80, 80, 0.0)
    assert any(line.startswith("epoch 2 of 2: loss=") for line in lines)

    folder = digits.folder / "store/runs/said/train/tensorboard"
    seen = {}
    for record in tf.data.TFRecordDataset([str(path) for path in folder.iterdir()]):
        for value in tf.compat.v1.Event.FromString(record.numpy()).summary.value:
            seen[value.tag] = float(tf.make_ndarray(value.tensor))
    assert seen["epoch/accuracy"] == pytest.approx(ModelManifest.load(url).metrics["accuracy"])
    assert seen["learning_rate"] == pytest.approx(0.01 * 0.9 ** (80 / 20), rel=1e-4)
    assert {"loss", "examples_per_second"} <= seen.keys()


@pytest.mark.parametrize(
    ("model", "message"),
    [
        ("uncompiled", r"'uncompiled' returned is not compiled; call model\.compile"),
        ("stepping", r"the train_step of Stepping returns \{\}; return a dict of numbers"),
        ("nameless", "no function build_model.*did you mean 'build_modle'"),
        ("absent", "there is no module 'absent'"),
    ],
)
def test_a_model_that_cannot_be_trained_is_refused(digits, model, message):
    with pytest.raises(FinalError, match=message):
        run(digits.replica("train", f"refused-{model}", model=model, data=digits.data))


def first_refused(digits):
    """The record and the shard of the first scan on which the transform of ``refusing`` fails."""
    from refusing import refuses

    dataset = load_dataset(digits.data)
    for shard in dataset.splits["train"].shards:
        [file] = download(digits.data, [shard], digits.folder)
        records = tf.data.TFRecordDataset(str(file))
        for index, record in enumerate(records):
            if refuses(parse([record], dataset.schema)["image"][0].numpy().astype(int)):
                return f"record {index} (from 0) of {shard.file}"
    raise AssertionError("no scan has a dark first column")


def test_the_record_on_which_a_transform_fails_is_named(digits):
    """Another test does so with workers."""
    with pytest.raises(FinalError) as caught:
        run(digits.replica("train", "named", model="raising", data=digits.data))
    assert first_refused(digits) in str(caught.value)


def test_a_corrupted_shard_is_named(digits, tmp_path):
    folder = Path(digits.data.removeprefix("file://"))
    copy = tmp_path / "data"
    copy.mkdir()
    for path in folder.iterdir():
        if path.is_file():
            (copy / path.name).write_bytes(path.read_bytes())
    shard = load_dataset(digits.data).splits["train"].shards[2].file
    content = bytearray((copy / shard).read_bytes())
    content[100] ^= 1
    (copy / shard).write_bytes(content)
    with pytest.raises(CorruptError, match=f"{shard} is corrupt"):
        run(digits.replica("train", "corrupt", model="small", data=copy.as_uri()))


def test_workers_and_a_ps_train_to_the_exact_step_and_an_evaluator_measures_checkpoints(digits):
    with digits.cluster(
        "servers", evaluator=True, model="on_import", epochs=6, checkpoint_interval=0.2
    ) as processes:
        said = read_until(processes["chief"], "epoch 6 of 6")
        assert processes["chief"].wait(60) == ExitCode.OK
        evaluated = processes["evaluator"].communicate(timeout=240)[0]
        assert processes["evaluator"].returncode == ExitCode.OK
        for index in range(2):
            assert "leases to it of 4 shards" in read_until(processes[f"worker-{index}"], "serves")
    folder = digits.folder / "store/runs/servers/train"
    trained = ModelManifest.load(json.loads((folder / "result.json").read_text())["value"])
    assert trained.step == 6 * STEPS_PER_EPOCH
    assert trained.metrics["accuracy"] > 0.9
    assert Progress.parse(said).steps == 6 * STEPS_PER_EPOCH
    checkpoint = folder / "checkpoints/0001-0000000240/checkpoint"
    reader = tf.train.load_checkpoint(str(checkpoint))
    [iterations] = [name for name in reader.get_variable_to_shape_map() if "_iterations" in name]
    assert abs(reader.get_tensor(iterations) - 240) <= 2  # two workers set it at once
    assert "the checkpoint of step 240: " in evaluated
    store = open_store(f"{digits.store}/runs/servers/train")
    evaluations = [json.loads(store.get(each.key)) for each in store.list("evaluations")]
    assert len(evaluations) > 1
    last = max(evaluations, key=lambda each: each["step"])
    assert (last["step"], last["metrics"]["accuracy"] > 0.8) == (240, True)
    assert any(each.key.startswith("tensorboard/validation/") for each in store.list("tensorboard"))


def test_the_chief_names_the_record_on_which_a_worker_failed(digits):
    with digits.cluster("worker-fails", model="refusing") as processes:
        said = processes["chief"].communicate(timeout=120)[0]
        assert processes["chief"].returncode == ExitCode.FINAL
    assert first_refused(digits) in said
