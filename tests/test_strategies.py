"""Synchronous strategies: replicas that share a batch reach the result of one with all of it."""

import json
import sys
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import keras
import numpy as np
import pytest

from aerotrain.contract.errors import ExitCode, FinalError, SpecError
from aerotrain.contract.replicas import ReplicaSpec, Role
from aerotrain.contract.training import TrainArguments
from aerotrain.standalone.cli import main
from aerotrain.training.input.batches import MicrobatchSpec
from aerotrain.training.model.checks import check_divisible, check_exchanged
from aerotrain.training.model_manifest import ModelManifest
from aerotrain.training.strategies import ENGINES
from aerotrain.training.train import run as train
from support.training_fixtures import DIGITS, MODELS, read_until, start_python, steps_of_replicas

pytestmark = [pytest.mark.process, pytest.mark.timeout(900)]

STEPS = 50  # an epoch of 1,249 records has 40 batches of 32; the last one has 1 record


@dataclass(frozen=True, kw_only=True)
class Case:
    """Some steps under a strategy: in processes with so many devices each, and so many workers."""

    strategy: str
    devices: int
    workers: int
    model: str
    steps: int
    arguments: Mapping[str, Any]


def case(strategy, devices=0, workers=0, model="plain", steps=STEPS, **arguments):
    return Case(
        strategy=strategy,
        devices=devices or (1 if workers else 2),
        workers=workers,
        model=model,
        steps=steps,
        arguments=arguments,
    )


ALONE = {
    "one_device": case("one_device"),
    "one_device, embedding": case("one_device", model="looking_up", steps_per_execution=STEPS),
    "one_device, normalized": case("one_device", model="normalized"),
    "one_device, its own train step": case("one_device", model="own_step", steps=30),
    "one_device, masked": case("one_device", model="masked"),
    "one_device, Muon": case("one_device", steps=5, hparams={"optimizer": "Muon"}),
}

#: Cases that compute the same as ``one_device``.
SHARED = {
    "mirrored": case("mirrored"),
    "central_storage": case("central_storage"),
    "multi_worker_mirrored": case("multi_worker_mirrored", workers=1),
    "multi_worker_mirrored, ring of 2 devices each, small packs": case(
        "multi_worker_mirrored", devices=2, workers=1, communication="ring", bytes_per_pack=4096
    ),
    "one_device, microbatches": case("one_device", gradient_accumulation_steps=4),
    "mirrored, microbatches": case("mirrored", gradient_accumulation_steps=2),
    "multi_worker_mirrored, microbatches": case(
        "multi_worker_mirrored", workers=1, gradient_accumulation_steps=4
    ),
    "multi_worker_mirrored, XLA": case("multi_worker_mirrored", workers=1, jit_compile=True),
}

#: Cases that compute the same as ``one_device`` does with a custom train step.
SHARED_OWN = {
    "mirrored, its own train step": case("mirrored", model="own_step", steps=30),
    "central_storage, its own train step": case("central_storage", model="own_step", steps=30),
    "multi_worker_mirrored, its own train step": case(
        "multi_worker_mirrored", workers=1, model="own_step", steps=30
    ),
}

#: Cases in which replicas divide by what is not masked in the whole batch.
MASKED = {
    f"multi_worker_mirrored, masked{how}": case(
        "multi_worker_mirrored", workers=1, model="masked", **more
    )
    for how, more in (
        ("", {"steps_per_execution": 10}),
        (" microbatches", {"gradient_accumulation_steps": 2}),
        (" and XLA", {"jit_compile": True}),
    )
}

#: Several steps in one execution, in which all replicas share the variables of metrics.
AT_ONCE = "central_storage, its own train step, 10 at once"

#: An optimizer that assigns weights itself, outside of TensorFlow's updates of a central variable.
ASSIGNING = "central_storage, Muon"

#: Layers whose state depends on a replica's part of the batch. XLA compiles each size of a batch,
#: so the steps end before the epoch does.
STATEFUL = {
    "central_storage, state": case("central_storage", model="small", steps=30),
    "mirrored, state and XLA": case("mirrored", model="small", steps=30, jit_compile=True),
}

#: Replicas that normalize with the statistics of the whole batch, and with those of their part.
SYNCHRONIZED = {
    f"{name}, synchronized": case(
        name, workers=workers, model="normalized", synchronized_batch_norm=True, **more
    )
    for name, workers, more in (
        ("mirrored", 0, {}),
        ("central_storage", 0, {}),
        ("multi_worker_mirrored", 1, {"steps_per_execution": 5}),
    )
}
UNSYNCHRONIZED = {
    f"{name}, normalized": case(name, workers=workers, model="normalized", steps_per_execution=10)
    for name, workers in (("mirrored", 0), ("central_storage", 0), ("multi_worker_mirrored", 1))
}

#: One step of two replicas with one example each, of which each drops half of the units.
DROPPING = {
    f"{name}, dropping": case(name, workers=workers, model="dropping", steps=1, batch_size=2)
    for name, workers in (("mirrored", 0), ("central_storage", 0), ("multi_worker_mirrored", 1))
}

CASES = {
    **ALONE,
    **SHARED,
    **SHARED_OWN,
    **MASKED,
    AT_ONCE: case("central_storage", model="own_step", steps=30, steps_per_execution=10),
    ASSIGNING: case("central_storage", steps=5, hparams={"optimizer": "Muon"}),
    **STATEFUL,
    **SYNCHRONIZED,
    **UNSYNCHRONIZED,
    **DROPPING,
    "multi_worker_mirrored, embedding": case(
        "multi_worker_mirrored", workers=1, model="looking_up", steps_per_execution=STEPS
    ),
    "bfloat16": case("multi_worker_mirrored", workers=1, gradient_dtype="bfloat16"),
}


@pytest.fixture(scope="module")
def steps_of(digits):
    """A function that returns the results of a case, of every replica.

    The first call runs all cases with that number of devices and workers in the same processes.
    """
    runs = {}

    def run(name):
        place = (CASES[name].devices, CASES[name].workers)
        if place not in runs:
            runs[place] = None
            cases = {
                name: case for name, case in CASES.items() if (case.devices, case.workers) == place
            }
            jobs = [(job_of(digits, case), case.steps) for case in cases.values()]
            folder = digits.folder / "steps" / "-".join(map(str, place))
            steps = steps_of_replicas(jobs, folder, devices=CASES[name].devices)
            runs[place] = dict(zip(cases, steps, strict=True))
        assert runs[place], "its processes failed in the first test that needed them"
        return runs[place][name]

    return run


def job_of(digits, case):
    replicas = [ReplicaSpec(role=Role.CHIEF)]
    if case.workers:
        replicas.append(ReplicaSpec(role=Role.WORKER, count=case.workers))
    arguments = {"model": case.model, "data": digits.data, "steps_per_execution": 1}
    arguments |= case.arguments
    return digits.job("train", "steps", arguments, strategy=case.strategy, replicas=tuple(replicas))


def assert_same(one, other, rtol=2e-4, atol=2e-5):
    assert one.keys() == other.keys()
    for name in one:
        np.testing.assert_allclose(one[name], other[name], rtol=rtol, atol=atol, err_msg=name)


@pytest.mark.parametrize("name", SHARED)
def test_replicas_that_share_a_batch_train_the_same_model_as_one(steps_of, name):
    [alone] = steps_of("one_device")
    for replica in steps_of(name):
        assert replica["counter"] == replica["iterations"] == STEPS
        assert_same(replica, alone)


@pytest.mark.parametrize("name", MASKED)
def test_what_is_masked_counts_by_the_whole_batch_and_an_added_term_once(steps_of, name):
    [alone] = steps_of("one_device, masked")
    for replica in steps_of(name):
        every = STEPS // len(replica["loss"])
        logs = {name: alone[name][every - 1 :: every] for name in ("loss", "accuracy")}
        assert_same(replica, {**alone, **logs})


def test_an_optimizer_that_assigns_weights_trains_in_central_storage_as_on_one_device(steps_of):
    [alone], [central] = steps_of("one_device, Muon"), steps_of(ASSIGNING)
    assert_same(central, alone)


@pytest.mark.parametrize("name", SYNCHRONIZED)
def test_synchronized_batch_normalization_trains_the_same_model_as_one_replica(steps_of, name):
    [alone] = steps_of("one_device, normalized")
    for replica in steps_of(name):
        weights = {each: value for each, value in replica.items() if each.startswith("weight_")}
        assert_same(weights, {each: alone[each] for each in weights}, rtol=1e-3, atol=1e-4)


@pytest.mark.parametrize("name", UNSYNCHRONIZED)
def test_moving_averages_are_the_mean_of_those_of_all_replicas(steps_of, name):
    # A central variable gets the mean in each step.
    [central] = steps_of("central_storage, normalized")
    [alone] = steps_of("one_device, normalized")
    for replica in steps_of(name):
        assert_same(replica, central)
        assert abs(replica["loss"][-1] - alone["loss"][-1]) > 1e-3


@pytest.mark.parametrize("name", DROPPING)
def test_each_replica_drops_other_units(steps_of, name):
    for replica in steps_of(name):
        kept = -np.sort(np.unique(np.round(replica["weight_0"], 4)))
        np.testing.assert_allclose(sorted(kept), [0.0, 0.5, 1.0], atol=1e-3)


def test_workers_train_an_embedding_with_a_short_batch_as_one_replica_does(steps_of):
    # All in one execution, which ends an epoch, and so has batches of two sizes.
    [one] = steps_of("one_device, embedding")
    for replica in steps_of("multi_worker_mirrored, embedding"):
        assert_same(replica, one)


def test_gradients_of_16_bits_cost_little_accuracy(steps_of):
    [alone] = steps_of("one_device")
    one, other = steps_of("bfloat16")
    assert_same(one, other, rtol=0, atol=0)
    lost = np.abs(one["loss"] - alone["loss"]) / alone["loss"]
    print(f"mean {lost.mean():.5f}, worst {lost.max():.5f} of the loss")
    assert 0 < lost.mean() < 4 * 2**-8


@pytest.mark.parametrize(
    ("records", "pieces", "sizes", "weights"),
    [
        (32, 4, [8, 8, 8, 8], [0.25, 0.25, 0.25, 0.25]),
        (5, 4, [1, 1, 1, 2], [0.2, 0.2, 0.2, 0.4]),
        (1, 2, [1, 1], [0, 1]),
    ],
)
def test_every_record_of_a_batch_counts_once(records, pieces, sizes, weights):
    batch = np.array([str(each) for each in range(records)])
    cut = MicrobatchSpec(replicas=pieces)
    made = [cut.piece(batch, np.int64(number)) for number in range(pieces)]
    assert [len(piece) for _, piece in made] == sizes
    np.testing.assert_allclose([weight.numpy() for weight, _ in made], weights, rtol=1e-6)


def accuracy_by_hand(digits, run, strategy, devices):
    code = (
        "import tensorflow as tf; from aerotrain.standalone.cli import main\n"
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


def test_several_devices_around_a_center_reach_the_accuracy_of_one(digits):
    assert accuracy_by_hand(digits, "all-central", "central_storage", devices=2) > 0.95


def result_of(digits, name):
    result = digits.folder / "store/runs" / name / "train/result.json"
    return ModelManifest.load(json.loads(result.read_text())["value"])


def test_mirrored_workers_with_statistics_and_seeds_of_layers_reach_the_accuracy_of_one(digits):
    with digits.cluster(
        "layers", strategy="multi_worker_mirrored", model="on_import", epochs=6
    ) as processes:
        for process in processes.values():
            said = process.communicate(timeout=120)[0]
            assert process.returncode == ExitCode.OK, said
    trained = result_of(digits, "layers")
    assert trained.step == 6 * 40
    assert trained.metrics["accuracy"] > 0.9


@pytest.mark.parametrize("strategy", ["one_device", "mirrored", "central_storage", "dtensor"])
def test_a_module_may_use_tensorflow_when_it_is_imported(digits, strategy):
    """Other tests train this module with several workers, and on ps."""
    sys.modules.pop("on_import", None)
    training = digits.replica("train", f"import-{strategy}", model="on_import", data=digits.data)
    training = replace(training, job=replace(training.job, strategy=strategy))
    if strategy == "dtensor":
        message = "outside of the mesh.*create a tf.constant in the function"
        with pytest.raises(FinalError, match=message):
            train(training)
    else:
        assert ModelManifest.load(train(training)).metrics["accuracy"] > 0.9


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


@pytest.mark.parametrize("name", SHARED_OWN)
def test_replicas_with_a_custom_train_step_train_the_same_model_as_one(steps_of, name):
    [one] = steps_of("one_device, its own train step")
    for each in steps_of(name):
        assert_same(each, one)


def test_metrics_of_a_custom_train_step_count_each_step_of_an_execution_once(steps_of):
    [one], [central] = steps_of("one_device, its own train step"), steps_of(AT_ONCE)
    assert central["accuracy"][-1] == pytest.approx(one["accuracy"][-1], rel=1e-3)


def test_an_optimizer_that_accumulates_gradients_is_refused_with_several_replicas():
    model = keras.Sequential([keras.layers.Dense(1)])
    model.compile(keras.optimizers.SGD(gradient_accumulation_steps=2), "mse")
    arguments = TrainArguments(model="m", data="d")
    check_exchanged("one_device", model, arguments, replicas=1)
    with pytest.raises(FinalError, match=r"some steps only.*'mirrored'.*option of that name"):
        check_exchanged("mirrored", model, arguments, replicas=2)


def test_loss_scaling_in_central_storage_is_refused():
    model = keras.Sequential([keras.layers.Dense(1)])
    model.compile(keras.optimizers.LossScaleOptimizer(keras.optimizers.SGD()), "mse")
    arguments = TrainArguments(model="m", data="d", dtype_policy="mixed_float16")
    for strategy, replicas in (("central_storage", 1), ("mirrored", 2)):
        check_exchanged(strategy, model, arguments, replicas=replicas)
    with pytest.raises(FinalError, match="use mixed_bfloat16, or choose 'mirrored'"):
        check_exchanged("central_storage", model, arguments, replicas=2)


def test_gradient_accumulation_with_a_custom_train_step_is_refused():
    class Own(keras.Sequential):
        def train_step(self, data):
            return {"loss": 0.0}

    model = Own()
    model.compile(optimizer="sgd", loss="mse")
    arguments = TrainArguments(model="m", data="d", gradient_accumulation_steps=2)
    with pytest.raises(FinalError, match=r"Own has a train_step.*runs whole.*compute_loss"):
        check_exchanged("one_device", model, arguments, replicas=1)


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
            {"synchronized_batch_norm": True, "jit_compile": True},
            "exchanges statistics within a step, which XLA cannot compile",
        ),
        (
            {"gradient_accumulation_steps": 0},
            "gradient_accumulation_steps must be a whole number of 1 or more",
        ),
    ],
)
def test_an_argument_that_cannot_be_is_refused(wrong, message):
    with pytest.raises(SpecError, match=message):
        TrainArguments(model="m", data="d", **wrong)


@pytest.mark.parametrize("name", STATEFUL)
def test_layers_with_state_train_in_central_storage_and_compiled_by_xla(steps_of, name):
    for replica in steps_of(name):
        assert replica["counter"] == CASES[name].steps
        assert replica["loss"][-1] < replica["loss"][0]


def test_a_manually_set_tf_config_is_refused(monkeypatch, capsys, digits):
    monkeypatch.setenv("TF_CONFIG", "{}")
    words = ["train", "--model", "plain", "--code", str(MODELS), "--data", digits.data]
    with pytest.raises(SystemExit) as ended:
        main([*words, "--store", digits.store])
    assert ended.value.code == ExitCode.FINAL
    assert "TF_CONFIG is set in the environment" in capsys.readouterr().out


def test_importing_the_input_pipeline_does_not_initialize_the_runtime(tmp_path):
    # A strategy of several workers rejects a runtime that is already initialized.
    code = (
        "import aerotrain.training.input_pipeline\n"
        "from tensorflow.python.eager import context\n"
        "assert context.context()._context_handle is None\n"
    )
    with start_python(["-c", code], tmp_path) as process:
        said = process.communicate(timeout=100)[0]
        assert process.returncode == 0, said
