"""Synchronous strategies: replicas that share a batch reach the result of one with all of it."""

from collections.abc import Mapping
from dataclasses import dataclass
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
from aerotrain.training.strategies import ENGINES
from support.training_fixtures import MODELS, read_until, steps_of_replicas

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
    "one_device, wide": case("one_device", steps=5, hparams={"units": 8192}),
    "one_device, Muon": case("one_device", steps=5, hparams={"optimizer": "Muon"}),
}

#: Cases that compute the same as one device does: the key of that one, and the case.
#:
#: ``keras_table.py`` compares microbatches of one device, and custom train steps, with ``fit``.
SHARED = {
    "mirrored": ("one_device", case("mirrored")),
    # An optimizer that assigns weights itself, outside of TensorFlow's updates of a variable.
    "central_storage, Muon": (
        "one_device, Muon",
        case("central_storage", steps=5, hparams={"optimizer": "Muon"}),
    ),
    # Several steps in one execution, in which all replicas share the variables of metrics.
    "central_storage, its own train step, 10 at once": (
        "one_device, its own train step",
        case("central_storage", model="own_step", steps=30, steps_per_execution=10),
    ),
    "multi_worker_mirrored, its own train step": (
        "one_device, its own train step",
        case("multi_worker_mirrored", workers=1, model="own_step", steps=30),
    ),
    # 2.4 MB of gradients, which are sent in several packs.
    "multi_worker_mirrored, wide": (
        "one_device, wide",
        case("multi_worker_mirrored", workers=1, steps=5, hparams={"units": 8192}),
    ),
    # All in one execution, which ends an epoch, and so has batches of two sizes.
    "multi_worker_mirrored, embedding": (
        "one_device, embedding",
        case("multi_worker_mirrored", workers=1, model="looking_up", steps_per_execution=STEPS),
    ),
    # Replicas divide by what is not masked in the whole batch, and add an added term once.
    "multi_worker_mirrored, masked, 2 devices each": (
        "one_device, masked",
        case("multi_worker_mirrored", devices=2, workers=1, model="masked", communication="ring"),
    ),
    "multi_worker_mirrored, masked, microbatches by XLA": (
        "one_device, masked",
        case(
            "multi_worker_mirrored",
            workers=1,
            model="masked",
            gradient_accumulation_steps=2,
            jit_compile=True,
        ),
    ),
}

#: Layers whose state depends on a replica's part of the batch, compiled by XLA.
STATEFUL = case("mirrored", model="small", steps=20, jit_compile=True)

#: Replicas that normalize with the statistics of the whole batch, and with those of their part.
PLACES = (("mirrored", 0), ("central_storage", 0), ("multi_worker_mirrored", 1))
SYNCHRONIZED = {
    f"{name}, synchronized": case(
        name, workers=workers, model="normalized", synchronized_batch_norm=True
    )
    for name, workers in PLACES
}
UNSYNCHRONIZED = {
    f"{name}, normalized": case(name, workers=workers, model="normalized", steps_per_execution=10)
    for name, workers in PLACES
}

#: One step of two replicas with one example each, of which each drops half of the units.
DROPPING = {
    f"{name}, dropping": case(name, workers=workers, model="dropping", steps=1, batch_size=2)
    for name, workers in PLACES
}

CASES = {
    **ALONE,
    **{name: case for name, (_, case) in SHARED.items()},
    "mirrored, state and XLA": STATEFUL,
    **SYNCHRONIZED,
    **UNSYNCHRONIZED,
    **DROPPING,
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
    [alone] = steps_of(SHARED[name][0])
    for replica in steps_of(name):
        assert replica["counter"] == replica["iterations"] == CASES[name].steps
        # Those at the end of each execution.
        steps = len(alone["loss"]) // len(replica["loss"])
        logs = {each: alone[each][steps - 1 :: steps] for each in ("loss", "accuracy")}
        assert_same(replica, {**alone, **logs})


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


def test_workers_train_layers_with_state_and_a_lost_chief_is_a_temporary_error_of_them(digits):
    """The module uses TensorFlow as it is imported, which must not initialize its runtime."""
    with digits.cluster(
        "lost-chief", strategy="multi_worker_mirrored", model="on_import", epochs=2000
    ) as processes:
        said = read_until(processes["chief"], "epoch 6 of 2000")
        assert float(said.rpartition("accuracy=")[2].split()[0]) > 0.9
        processes["chief"].kill()
        said = read_until(processes["worker-0"], "error:")
        assert processes["worker-0"].wait(20) == ExitCode.TEMPORARY
    assert "another process of this job was lost" in said


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"batch_size": 33}, "33 .* by the 2 replicas of 'mirrored'; use 32 or 34"),
        ({"batch_size": 1}, "use 2$"),
        (
            {"batch_size": 36, "gradient_accumulation_steps": 4},
            "2 replicas of 4 pieces each of 'mirrored'; use 32 or 40",
        ),
    ],
)
def test_a_batch_that_does_not_divide_is_refused(arguments, message):
    with pytest.raises(FinalError, match=message):
        check_divisible("mirrored", TrainArguments(model="m", data="d", **arguments), 2)


class OwnStep(keras.Sequential):
    def train_step(self, data):
        return {"loss": 0.0}


@pytest.mark.parametrize(
    ("kind", "optimizer", "arguments", "accepted", "refused", "message"),
    [
        (
            keras.Sequential,
            keras.optimizers.SGD(gradient_accumulation_steps=2),
            {},
            ("one_device", 1),
            ("mirrored", 2),
            r"some steps only.*option of that name",
        ),
        (
            keras.Sequential,
            keras.optimizers.LossScaleOptimizer(keras.optimizers.SGD()),
            {"dtype_policy": "mixed_float16"},
            ("mirrored", 2),
            ("central_storage", 2),
            "use mixed_bfloat16, or choose 'mirrored'",
        ),
        (
            OwnStep,
            "sgd",
            {"gradient_accumulation_steps": 2},
            None,
            ("one_device", 1),
            r"OwnStep has a train_step.*compute_loss",
        ),
    ],
    ids=["an optimizer that accumulates", "loss scaling", "microbatches of a custom step"],
)
def test_a_model_whose_gradients_replicas_cannot_exchange_is_refused(
    kind, optimizer, arguments, accepted, refused, message
):
    model = kind([keras.layers.Dense(1)])
    model.compile(optimizer, "mse")
    given = TrainArguments(model="m", data="d", **arguments)
    if accepted is not None:
        strategy, replicas = accepted
        check_exchanged(strategy, model, given, replicas=replicas)
    strategy, replicas = refused
    with pytest.raises(FinalError, match=message):
        check_exchanged(strategy, model, given, replicas=replicas)


def test_a_communication_library_of_gpus_is_refused_without_gpus():
    arguments = TrainArguments(model="m", data="d", communication="nccl")
    with pytest.raises(FinalError, match=r"joins GPUs.*use 'auto' or 'ring'"):
        ENGINES["multi_worker_mirrored"].build(arguments)


def test_layers_with_state_train_compiled_by_xla(steps_of):
    for replica in steps_of("mirrored, state and XLA"):
        assert replica["counter"] == STATEFUL.steps
        assert replica["loss"][-1] < replica["loss"][0]


def test_a_manually_set_tf_config_is_refused(monkeypatch, capsys, digits):
    monkeypatch.setenv("TF_CONFIG", "{}")
    words = ["train", "--model", "plain", "--code", str(MODELS), "--data", digits.data]
    with pytest.raises(SystemExit) as ended:
        main([*words, "--store", digits.store])
    assert ended.value.code == ExitCode.FINAL
    assert "TF_CONFIG is set in the environment" in capsys.readouterr().out


def test_synchronized_statistics_are_refused_under_xla():
    with pytest.raises(SpecError, match="exchanges statistics within a step, which XLA cannot"):
        TrainArguments(model="m", data="d", synchronized_batch_norm=True, jit_compile=True)
