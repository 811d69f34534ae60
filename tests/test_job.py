"""The description of a job: its fields and its checks."""

import json
import re
from typing import Any

import pytest

from aerotrain.contract.environment import (
    cluster_of,
    replica_environment,
    set_tensorflow_variables,
)
from aerotrain.contract.errors import SpecError
from aerotrain.contract.job import Job
from aerotrain.contract.replicas import ReplicaName, ReplicaSpec, Role
from aerotrain.contract.steps import ARGUMENTS
from aerotrain.contract.training import TrainArguments

TRAIN, EVALUATE = "aerotrain.training.train", "aerotrain.evaluation.evaluate"
PLAN = "aerotrain.data.prepare.plan"


def job(**changes: Any) -> Job:
    plain = {
        "name": "train-digits",
        "module": TRAIN,
        "store": "s3://bucket/digits",
        "run": "manual",
        "task": "train",
        "strategy": "parameter_server",
        "replicas": [{"role": "chief"}, {"role": "worker", "count": 2}, {"role": "ps"}],
    }
    return Job.from_dict({**plain, **changes})


def replicas(**counts: int | None) -> list[dict[str, Any]]:
    return [{"role": "chief"}, *({"role": role, "count": count} for role, count in counts.items())]


def test_a_job_is_equal_after_a_round_trip_through_json() -> None:
    described = job(
        arguments={"epochs": 3, "hparams": {"learning_rate": 0.1}},
        replicas=[
            {"role": "chief", "resources": {"cpu": 2, "memory": "4Gi", "shared_memory": "1Gi"}},
            {"role": "worker", "count": 2, "environment": {"OMP_NUM_THREADS": "1"}},
            {"role": "ps", "pod": {"spec": {"nodeSelector": {"disk": "none"}}}},
        ],
        deadlines={"start": 60, "run": 3600, "progress_timeout": 20},
        restarts={"crashes": 1, "hangs": 0},
    )
    assert Job.from_json(described.to_json()) == described


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        ({"strategy": "parameter_sever"}, "did you mean 'parameter_server'?"),
        (
            {"strategy": "one_device", "replicas": replicas(ps=1)},
            "asks for 1 ps but its strategy is 'one_device'; use 'parameter_server', or drop",
        ),
        ({"strategy": "one_device", "replicas": replicas(worker=2)}, "drop the workers"),
        ({"replicas": replicas(worker=2)}, "asks for none; ask for 1 ps or more"),
        ({"replicas": replicas(worker=0, ps=1)}, "asks for 0 workers"),
        ({"replicas": replicas(worker="two", ps=1)}, 'a whole number, or a range such as "2..8"'),
        ({"replicas": replicas(worker="2..", ps=1)}, "got '2..'"),
        ({"replicas": replicas(worker="3..2", ps=1)}, 'ends before it begins; write "2..3"'),
        (
            {"replicas": replicas(worker="0..2", ps=1)},
            "a range of workers begins with 1 or more, got '0..2'",
        ),
        ({"replicas": [{"role": "chief", "count": 2}]}, "at most one chief, got 2"),
        ({"replicas": [{"role": "chief"}, {"role": "chief"}]}, "the chief more than once"),
        ({"replicas": [{"role": "worker"}, {"role": "ps"}]}, "has no chief"),
        ({"replicas": [{"role": "chef"}]}, "got 'chef', did you mean 'chief'?"),
        ({"replicas": [{"count": 1}]}, "needs role; missing: role"),
        ({"name": "Digits"}, "must be a DNS label: at most 63 lower-case letters"),
        ({"store": "bucket/digits"}, "store of a job must be a URL, such as s3://bucket/prefix"),
        ({"run": "../../x"}, "cannot be part of a store's key"),
        ({"version": 5, "new": 1}, "is written in version 5"),
        ({"strategi": "one_device"}, "no field 'strategi', did you mean 'strategy'?"),
        ({"deadlines": None}, "described by an object, got None"),
        ({"deadlines": {"run": 0}}, "run of 'deadlines' must be a number of seconds above 0"),
        (
            {"replicas": [{"role": "chief", "environment": {"TF_CONFIG": "{}"}}]},
            "sets TF_CONFIG, which the launcher sets",
        ),
        ({"replicas": [{"role": "chief", "resources": {"memory": "lots"}}]}, "512Mi or 4Gi"),
        (
            {"strategy": "dtensor", "replicas": replicas(worker="1..2")},
            "only the number of workers of multi_worker_mirrored and parameter_server can change",
        ),
        ({"replicas": replicas(worker=2, ps="1..2")}, "asks for 1 to 2 ps"),
        ({"strategy": "one_device", "replicas": replicas(worker="1..2")}, "drop the workers"),
        (
            {"strategy": "dtensor", "replicas": replicas(input=2)},
            "asks for 2 input but under 'dtensor' every process reads each batch; drop the input",
        ),
    ],
)
def test_an_invalid_job_is_refused_in_one_sentence(changes: dict[str, Any], sentence: str) -> None:
    with pytest.raises(SpecError, match=re.escape(sentence)) as refusal:
        job(**changes)
    assert "\n" not in str(refusal.value)


@pytest.mark.parametrize(
    ("count", "sizes"), [("1..3", [1, 2, 3]), ("2", [2]), ("2..2", [2]), (2, [2])]
)
def test_the_number_of_workers_may_be_a_range(count: Any, sizes: list[int]) -> None:
    described = job(replicas=replicas(worker=count, ps=1))
    assert [*described.sizes] == sizes
    assert described.count(Role.WORKER) == sizes[-1]
    assert Job.from_json(described.to_json()) == described


def test_a_count_of_null_means_the_default_of_the_strategy_and_zero_omits_the_role() -> None:
    form = replicas(worker=None, ps=None)
    assert [str(name) for name in job(replicas=form).names()] == [
        "chief",
        "worker-0",
        "worker-1",
        "ps-0",
    ]
    assert list(job(strategy="one_device", replicas=form).names()) == [ReplicaName(Role.CHIEF, 0)]
    assert job(strategy="one_device", replicas=replicas(ps=0)).count(Role.PS) == 0


INPUT = [*replicas(worker=1, ps=1), *replicas(input=2)[1:]]


@pytest.mark.parametrize(
    ("strategy", "described", "name", "members"),
    [
        ("parameter_server", replicas(worker=2, ps=1), "worker-1", "chief ps-0 worker-0 worker-1"),
        # The evaluator is told the cluster, and is no member of it.
        ("parameter_server", [*INPUT, {"role": "evaluator"}], "evaluator", "chief ps-0 worker-0"),
        ("parameter_server", INPUT, "chief", "chief ps-0 worker-0"),
        ("parameter_server", INPUT, "input-1", ""),
        ("one_device", replicas(input=1), "chief", ""),
        ("one_device", replicas(), "chief", ""),
    ],
)
def test_tf_config_has_the_cluster_and_the_replicas_own_task(
    strategy: str, described: list[dict[str, Any]], name: str, members: str
) -> None:
    made = job(strategy=strategy, replicas=described)
    names = {str(each): each for each in made.names()}
    addresses = {each: f"{each}:1" for each in made.names()}
    environment = replica_environment(made, names[name], addresses, "try")
    environment["TF_CONFIG"] = "inherited"
    set_tensorflow_variables(environment)
    if not members:
        assert "TF_CONFIG" not in environment
        return
    config = json.loads(environment["TF_CONFIG"])
    found = [address for role in config["cluster"].values() for address in role]
    assert found == [f"{each}:1" for each in members.split()]
    assert config["task"] == {"type": names[name].role, "index": names[name].index}


def test_all_replicas_know_the_addresses_of_the_input_replicas() -> None:
    described = job(replicas=INPUT)
    cluster = cluster_of(described, {name: str(name) for name in described.names()})
    assert cluster["input"] == ["input-0", "input-1"]


def test_dtensor_has_the_addresses_of_chief_and_workers_and_its_own_index() -> None:
    described = job(strategy="dtensor", replicas=replicas(worker=1))
    addresses = {name: f"{name}:1" for name in described.names()}
    environment = replica_environment(described, ReplicaName(Role.WORKER, 0), addresses, "try")
    set_tensorflow_variables(environment)
    assert environment["DTENSOR_JOBS"] == "chief:1,worker-0:1"
    assert (environment["DTENSOR_JOB_NAME"], environment["DTENSOR_CLIENT_ID"]) == ("worker", "1")


def test_a_replicas_environment_holds_its_roles_own_variables() -> None:
    described = job(
        replicas=[
            {"role": "chief"},
            {"role": "worker", "environment": {"OMP_NUM_THREADS": "1"}},
            {"role": "ps"},
        ]
    )
    addresses = {name: str(name) for name in described.names()}
    environment = replica_environment(described, ReplicaName(Role.WORKER, 0), addresses, "try-1")
    assert environment["OMP_NUM_THREADS"] == "1"
    assert environment["AEROTRAIN_ROLE"] == "worker"
    assert Job.from_json(environment["AEROTRAIN_JOB"]) == described


@pytest.mark.parametrize(
    ("module", "changes", "sentence"),
    [
        (TRAIN, {"epoch": 1}, "did you mean 'epochs'?"),
        (TRAIN, {"class_weight": {"3": "2"}}, "class_weight['3'] must be a number of 0 or more"),
        (TRAIN, {"class_weight": {"three": 2}}, "class_weight has no class 'three'"),
        (EVALUATE, {"thresholds": {"auc": "high"}}, "thresholds['auc'] of evaluate must be a num"),
        (PLAN, {"source": {}}, "names no kind"),
        (PLAN, {"split_by": {"way": "time", "column": "a", "until": 3}}, "the until of split_by"),
        (PLAN, {"splits": {"train": 0.5, "test": 0.4}}, "add up to 1"),
        (PLAN, {"ranges": {"age": [3, 1]}}, "must be its least and its greatest value"),
    ],
)
def test_arguments_that_no_step_can_use_are_refused(
    module: str, changes: dict[str, Any], sentence: str
) -> None:
    given = {"source": {"kind": "python"}} if module == PLAN else {"model": "m", "data": "d"}
    with pytest.raises(SpecError, match=re.escape(sentence)):
        ARGUMENTS[module].from_dict(given | changes)


def test_build_model_receives_the_loops_numbers_and_the_users_own() -> None:
    arguments = TrainArguments(model="m", data="d", epochs=2, hparams={"units": 8, "seed": 5})
    assert arguments.all_hparams == {"epochs": 2, "batch_size": 32, "seed": 5, "units": 8}


def test_an_unknown_role_has_no_count() -> None:
    assert job(strategy="one_device", replicas=[{"role": "chief"}]).count(Role.EVALUATOR) == 0
    assert ReplicaSpec(role=Role.PS).count == 1
