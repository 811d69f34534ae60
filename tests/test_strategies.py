"""Synchronous strategies: replicas that share a batch reach the result of one with all of it."""

import json
import subprocess
import sys

import keras
import numpy as np
import pytest

from aerotrain.cli import main
from aerotrain.contract.errors import ExitCode, FinalError, SpecError
from aerotrain.contract.job import ReplicaSpec, Role
from aerotrain.contract.steps import TrainArguments
from aerotrain.training.input.batches import MicrobatchSpec
from aerotrain.training.internals import keras3
from aerotrain.training.model.checks import check_divisible, check_exchanged
from aerotrain.training.model_manifest import ModelManifest
from aerotrain.training.strategies import ENGINES
from support.training_fixtures import DIGITS, MODELS, read_until, start_python, steps_of_replicas

pytestmark = pytest.mark.process

STEPS = 50  # an epoch of 1,249 records has 40 batches of 32; the last one has 1 record


@pytest.fixture(scope="module")
def steps_of(digits):
    """A function that runs steps under a strategy, and returns their results."""

    def run(strategy, devices=1, workers=0, model="plain", steps=STEPS, **arguments):
        common = {"model": model, "data": digits.data, "steps_per_execution": 1}
        replicas = [ReplicaSpec(role=Role.CHIEF)]
        if workers:
            replicas.append(ReplicaSpec(role=Role.WORKER, count=workers))
        job = digits.job(
            "train", "steps", {**common, **arguments}, strategy=strategy, replicas=tuple(replicas)
        )
        digits.started.append("steps")
        folder = digits.folder / "steps" / str(len(digits.started))
        return steps_of_replicas(job, folder, devices, steps)

    return run


@pytest.fixture(scope="module")
def alone(steps_of):
    """The result of one replica with the whole of each batch."""
    return steps_of("one_device")[0]


def assert_same(one, other, rtol=2e-4, atol=2e-5):
    assert one.keys() == other.keys()
    for name in one:
        np.testing.assert_allclose(one[name], other[name], rtol=rtol, atol=atol, err_msg=name)


@pytest.mark.parametrize(
    ("strategy", "setting"),
    [
        ("mirrored", {"devices": 2}),
        ("mirrored", {"devices": 4}),
        ("central_storage", {"devices": 2}),
        ("multi_worker_mirrored", {"workers": 1}),
        ("multi_worker_mirrored", {"workers": 1, "devices": 2, "communication": "ring"}),
        ("one_device", {"gradient_accumulation_steps": 4}),
        ("mirrored", {"devices": 2, "gradient_accumulation_steps": 2}),
        ("multi_worker_mirrored", {"workers": 1, "gradient_accumulation_steps": 4}),
        ("multi_worker_mirrored", {"workers": 1, "bytes_per_pack": 4096}),
        ("one_device", {"jit_compile": True}),
        ("mirrored", {"devices": 2, "jit_compile": True}),
        ("multi_worker_mirrored", {"workers": 1, "jit_compile": True}),
    ],
    ids=str,
)
def test_replicas_that_share_a_batch_train_the_same_model_as_one(
    steps_of, alone, strategy, setting
):
    for replica in steps_of(strategy, **setting):
        assert replica["counter"] == replica["iterations"] == STEPS
        assert_same(replica, alone)


def test_workers_train_an_embedding_with_a_short_batch_as_one_replica_does(steps_of):
    # All in one execution, which ends an epoch, and so has batches of two sizes.
    setting = {"model": "looking_up", "steps_per_execution": STEPS}
    [one] = steps_of("one_device", **setting)
    for replica in steps_of("multi_worker_mirrored", workers=1, **setting):
        assert_same(replica, one)


@pytest.mark.parametrize(("dtype", "error"), [("bfloat16", 2**-8), ("float16", 2**-10)])
def test_gradients_of_16_bits_cost_little_accuracy(steps_of, alone, dtype, error):
    one, other = steps_of("multi_worker_mirrored", workers=1, gradient_dtype=dtype)
    assert_same(one, other, rtol=0, atol=0)
    lost = np.abs(one["loss"] - alone["loss"]) / alone["loss"]
    print(f"{dtype}: mean {lost.mean():.5f}, worst {lost.max():.5f} of the loss")
    assert 0 < lost.mean() < 4 * error


@pytest.mark.parametrize(
    ("records", "pieces", "sizes", "shares"),
    [
        (32, 4, [8, 8, 8, 8], [1, 1, 1, 1]),
        (5, 4, [1, 1, 1, 2], [0.8, 0.8, 0.8, 1.6]),
        (1, 2, [1, 1], [0, 2]),
    ],
)
def test_every_record_of_a_batch_counts_once(records, pieces, sizes, shares):
    batch = np.array([str(each) for each in range(records)])
    cut = MicrobatchSpec(replicas=pieces)
    made = [cut.piece(batch, np.int64(number)) for number in range(pieces)]
    assert [len(piece) for _, piece in made] == sizes
    np.testing.assert_allclose([share.numpy() for share, _ in made], shares, rtol=1e-6)
    assert sum(share.numpy() for share, _ in made) == pytest.approx(pieces)


def accuracy_by_hand(digits, run, strategy, devices):
    code = (
        "import tensorflow as tf; from aerotrain.cli import main\n"
        "[cpu] = tf.config.list_physical_devices('CPU')\n"
        f"several = [tf.config.LogicalDeviceConfiguration()] * {devices}\n"
        "tf.config.set_logical_device_configuration(cpu, several)\n"
        f"main(['train', '--run', '{run}', '--strategy', '{strategy}', '--model', 'digits',"
        f" '--code', '{DIGITS}', '--data', '{digits.data}', '--store', '{digits.store}',"
        " '--epochs', '12'])"
    )
    with start_python(["-c", code], digits.folder) as process:
        read_until(process, "the trained model is")
    return ModelManifest.load(f"{digits.store}/runs/{run}/train/model.json").metrics["accuracy"]


@pytest.mark.parametrize("strategy", ["mirrored", "central_storage"])
def test_several_devices_reach_the_accuracy_of_one(digits, strategy):
    assert accuracy_by_hand(digits, f"all-{strategy}", strategy, devices=2) > 0.95


def result_of(digits, name):
    result = digits.folder / "store/runs" / name / "train/result.json"
    return ModelManifest.load(json.loads(result.read_text())["value"])


def test_mirrored_workers_reach_the_accuracy_of_one_and_resume_after_it(digits):
    common = {"strategy": "multi_worker_mirrored", "code": DIGITS, "model": "digits"}
    with digits.cluster("peers", epochs=12, checkpoint_interval=0.5, **common) as processes:
        read_until(processes["chief"], "epoch 12 of 12")
        for process in processes.values():
            assert process.wait(60) == ExitCode.OK
    trained = result_of(digits, "peers")
    assert trained.step == 12 * 40
    assert trained.metrics["accuracy"] > 0.95

    with digits.cluster("peers", epochs=13, **common) as processes:
        for process in processes.values():
            assert "resuming from the checkpoint of step 480" in read_until(process, "resuming")
            process.communicate(timeout=120)
            assert process.returncode == ExitCode.OK
    assert result_of(digits, "peers").step == 13 * 40


def test_mirrored_workers_train_layers_with_statistics_and_seeds(digits):
    with digits.cluster(
        "layers", strategy="multi_worker_mirrored", model="small", epochs=6
    ) as processes:
        for process in processes.values():
            said = process.communicate(timeout=120)[0]
            assert process.returncode == ExitCode.OK, said
    assert result_of(digits, "layers").metrics["accuracy"] > 0.9


@pytest.mark.parametrize(("killed", "left"), [("worker-0", "chief"), ("chief", "worker-0")])
def test_a_failed_peer_is_a_temporary_error(digits, killed, left):
    with digits.cluster(
        f"lost-{killed}", strategy="multi_worker_mirrored", model="small", epochs=2000
    ) as processes:
        read_until(processes["chief"], "epoch 2 of 2000")
        processes[killed].kill()
        said = read_until(processes[left], "error:")
        assert processes[left].wait(20) == ExitCode.TEMPORARY
    assert "another process of this job was lost" in said


@pytest.mark.parametrize(
    ("arguments", "replicas", "message"),
    [
        (
            {"batch_size": 33},
            2,
            "33 .* by the 2 replicas of 'mirrored'; use 32 or 34",
        ),
        ({"batch_size": 1}, 2, "use 2$"),
        (
            {"batch_size": 36, "gradient_accumulation_steps": 4},
            2,
            "2 replicas of 4 pieces each of 'mirrored'; use 32 or 40",
        ),
    ],
)
def test_a_batch_that_does_not_divide_is_refused(arguments, replicas, message):
    with pytest.raises(FinalError, match=message):
        check_divisible("mirrored", TrainArguments(model="m", data="d", **arguments), replicas)


def test_a_loss_with_sum_reduction_is_refused_if_the_last_batch_is_uneven():
    model = keras.Sequential([keras.layers.Dense(1)])
    model.compile("sgd", keras.losses.MeanSquaredError(reduction="sum"))
    keras3.build_symbolically(model, (keras.KerasTensor((8, 4)), keras.KerasTensor((8, 1))))
    arguments = TrainArguments(model="m", data="d")
    check_exchanged("mirrored", model, arguments, records=66, replicas=2)
    with pytest.raises(FinalError, match="reduction 'sum', and the last batch of 1 records"):
        check_exchanged("mirrored", model, arguments, records=65, replicas=2)


@pytest.mark.parametrize(
    ("strategy", "devices", "workers"),
    [("mirrored", 2, 0), ("central_storage", 2, 0), ("multi_worker_mirrored", 1, 1)],
)
def test_replicas_with_a_custom_train_step_train_the_same_model_as_one(
    steps_of, strategy, devices, workers
):
    [one] = steps_of("one_device", model="own_step", steps=30)
    for each in steps_of(strategy, devices, workers, model="own_step", steps=30):
        # compute_loss returns a replica's part of the loss, as under fit.
        each["loss"] *= 2
        assert_same(each, one)


def test_an_optimizer_that_accumulates_gradients_is_refused_with_several_replicas():
    model = keras.Sequential([keras.layers.Dense(1)])
    model.compile(keras.optimizers.SGD(gradient_accumulation_steps=2), "mse")
    arguments = TrainArguments(model="m", data="d")
    check_exchanged("one_device", model, arguments, records=64, replicas=1)
    with pytest.raises(FinalError, match=r"over 2 steps.*'mirrored'.*the option of that name"):
        check_exchanged("mirrored", model, arguments, records=64, replicas=2)


def test_gradient_accumulation_with_a_custom_train_step_is_refused():
    class Own(keras.Sequential):
        def train_step(self, data):
            return {"loss": 0.0}

    model = Own()
    model.compile(optimizer="sgd", loss="mse")
    arguments = TrainArguments(model="m", data="d", gradient_accumulation_steps=2)
    with pytest.raises(FinalError, match=r"Own has a train_step.*runs whole.*compute_loss"):
        check_exchanged("one_device", model, arguments, records=64, replicas=1)


def test_a_communication_library_of_gpus_is_refused_without_gpus():
    arguments = TrainArguments(model="m", data="d", communication="nccl")
    with pytest.raises(FinalError, match=r"joins GPUs.*use 'auto' or 'ring'"):
        ENGINES["multi_worker_mirrored"].build(arguments)


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"communication": "rng"}, "no communication 'rng', did you mean 'ring'"),
        ({"gradient_dtype": "int8"}, "no gradient_dtype 'int8'.*float32, bfloat16, float16"),
        ({"bytes_per_pack": -1}, "bytes_per_pack must be a whole number of 0 or more"),
        (
            {"gradient_accumulation_steps": 0},
            "gradient_accumulation_steps must be a whole number of 1 or more",
        ),
    ],
)
def test_an_argument_that_cannot_be_is_refused(wrong, message):
    with pytest.raises(SpecError, match=message):
        TrainArguments(model="m", data="d", **wrong)


def test_layers_with_state_train_in_central_storage(steps_of):
    [replica] = steps_of("central_storage", model="small", devices=2)
    assert replica["counter"] == STEPS
    assert replica["loss"][-1] < replica["loss"][0]


@pytest.mark.parametrize("strategy", ["mirrored", "multi_worker_mirrored"])
def test_layers_with_state_can_be_compiled_by_xla(steps_of, strategy):
    where = {"devices": 2} if strategy == "mirrored" else {"workers": 1}
    for replica in steps_of(strategy, model="small", jit_compile=True, **where):
        assert replica["counter"] == STEPS
        assert replica["loss"][-1] < replica["loss"][0]


def test_a_manually_set_tf_config_is_refused(monkeypatch, capsys, digits):
    monkeypatch.setenv("TF_CONFIG", "{}")
    words = ["train", "--model", "plain", "--code", str(MODELS), "--data", digits.data]
    with pytest.raises(SystemExit) as ended:
        main([*words, "--store", digits.store])
    assert ended.value.code == ExitCode.FINAL
    assert "TF_CONFIG is set in the environment" in capsys.readouterr().out


def test_importing_the_input_pipeline_does_not_initialize_the_runtime():
    # A strategy of several workers rejects a runtime that is already initialized.
    code = (
        "import aerotrain.training.input_pipeline\n"
        "from tensorflow.python.eager import context\n"
        "assert context.context()._context_handle is None\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True)
