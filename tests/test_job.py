"""The description of a job: its fields and its checks."""

import json
import re
from typing import Any

import pytest

from aerotrain.contract.environment import (
    cluster_of,
    replica_environment,
    set_tensorflow_variables,
    tf_config,
)
from aerotrain.contract.errors import SpecError
from aerotrain.contract.job import Job
from aerotrain.contract.replicas import ReplicaName, ReplicaSpec, Role
from aerotrain.contract.steps import ARGUMENTS, PlanArguments
from aerotrain.contract.training import TrainArguments

TRAIN, EVALUATE = "aerotrain.training.train", "aerotrain.evaluation.evaluate"


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
        ({"replicas": replicas(worker=-1, ps=1)}, "count of worker must be 1 or more, got -1"),
        ({"replicas": replicas(worker="2", ps=1)}, "count of worker must be 1 or more, got '2'"),
        ({"replicas": [{"role": "chief", "count": 2}]}, "at most one chief, got 2"),
        ({"replicas": [{"role": "chief"}, {"role": "chief"}]}, "the chief more than once"),
        ({"replicas": [{"role": "worker"}, {"role": "ps"}]}, "has no chief"),
        ({"replicas": [{"role": "chef"}]}, "no role 'chef', did you mean 'chief'?"),
        ({"name": "Digits"}, "'Digits' is no DNS label"),
        ({"name": "a" * 64}, "is no DNS label"),
        ({"name": "-a"}, "is no DNS label"),
        ({"store": "bucket/digits"}, "has no scheme"),
        ({"version": 4}, "is written in version 4"),
        ({"strategi": "one_device"}, "no field 'strategi', did you mean 'strategy'?"),
        (
            {"replicas": [{"role": "chief", "environment": {"TF_CONFIG": "{}"}}]},
            "sets TF_CONFIG, which the launcher sets",
        ),
        (
            {"replicas": [{"role": "chief", "environment": {"AEROTRAIN_CLUSTER": "{}"}}]},
            "sets AEROTRAIN_CLUSTER, which the launcher sets",
        ),
        ({"replicas": [{"count": 1}]}, "needs role; missing: role"),
        ({"replicas": [{"role": "chief", "environment": {"A": 1}}]}, "sets A to 1; give it a str"),
        ({"replicas": [{"role": "chief", "resources": {"memory": "lots"}}]}, "512Mi or 4Gi"),
        ({"replicas": [{"role": "chief", "environment": 3}]}, "environment of a replica must be"),
        ({"replicas": [{"role": "chief", "cpus": 2}]}, "a replica has no field 'cpus'"),
        ({"min_workers": "2"}, "min_workers of a job must be a whole number or null, got '2'"),
        ({"deadlines": None}, "described by an object, got None"),
        ({"deadlines": {"run": "60"}}, "run of 'deadlines' must be a number, got '60'"),
        ({"run": "../../x"}, "cannot be part of a store's key"),
        ({"task": "part/.."}, "cannot be part of a store's key"),
        ({"version": 4, "new": 1}, "is written in version 4"),
        ({"deadlines": {"run": 0}}, "deadlines are seconds above zero"),
        ({"restarts": {"crashes": -1}}, "restart budgets are not below zero"),
        ({"replicas": [{"role": "chief", "resources": {"cpu": 0}}]}, "cpu must be above zero"),
        ({"replicas": [{"role": "chief", "resources": {"tpu": -1}}]}, "tpu not below it"),
        (
            {"replicas": [{"role": "chief", "resources": {"shared_memory": "much"}}]},
            "shared_memory is 'much'; write it as Kubernetes does",
        ),
        (
            {"replicas": [{"role": "chief", "pod": "gpu.yaml"}]},
            "pod of a replica must be an object, got 'gpu.yaml'",
        ),
        (
            {"replicas": replicas(worker=2, ps=1), "min_workers": 3},
            "2 workers under 'parameter_server' and may go on with min_workers=3; give it 1 to 2",
        ),
        ({"replicas": replicas(worker=2, ps=1), "min_workers": 0}, "give it 1 to 2, or leave it"),
        ({"strategy": "one_device", "replicas": replicas(), "min_workers": 1}, "; leave it out"),
        (
            {"strategy": "dtensor", "replicas": replicas(input=2, dispatcher=1)},
            "asks for 2 input but under 'dtensor' every process reads each batch; drop the input",
        ),
        (
            {"strategy": "one_device", "replicas": replicas(input=2)},
            "2 input and 0 dispatcher, and each needs the other; ask for both",
        ),
    ],
)
def test_an_invalid_job_is_refused_in_one_sentence(changes: dict[str, Any], sentence: str) -> None:
    with pytest.raises(SpecError, match=re.escape(sentence)) as refusal:
        job(**changes)
    assert "\n" not in str(refusal.value)


def test_a_missing_field_of_a_job_is_named() -> None:
    with pytest.raises(SpecError, match="missing: store, run, task"):
        Job.from_dict({"name": "a", "module": "m"})


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


def test_every_replica_has_the_whole_cluster_and_its_own_task_in_tf_config() -> None:
    described = job()
    addresses = {name: f"{name}.train:2222" for name in described.names()}
    config = tf_config(cluster_of(described, addresses), ReplicaName(Role.WORKER, 1))
    assert config is not None
    assert json.loads(config) == {
        "cluster": {
            "chief": ["chief.train:2222"],
            "worker": ["worker-0.train:2222", "worker-1.train:2222"],
            "ps": ["ps-0.train:2222"],
        },
        "task": {"type": "worker", "index": 1},
    }


def test_the_evaluator_is_no_member_of_the_cluster_in_its_tf_config() -> None:
    described = job(replicas=[*replicas(worker=1, ps=1), {"role": "evaluator"}])
    addresses = {name: str(name) for name in described.names()}
    assert set(cluster_of(described, addresses)) == {"chief", "worker", "ps"}
    environment = replica_environment(described, ReplicaName(Role.EVALUATOR, 0), addresses, "try")
    set_tensorflow_variables(environment)
    assert json.loads(environment["TF_CONFIG"])["task"] == {"type": "evaluator", "index": 0}


def test_input_replicas_are_known_to_all_but_not_part_of_tensorflows_cluster() -> None:
    roles = [*replicas(worker=1, ps=1), *replicas(input=2, dispatcher=1)[1:]]
    described = job(replicas=roles)
    addresses = {name: str(name) for name in described.names()}
    cluster = cluster_of(described, addresses)
    assert cluster["input"] == ["input-0", "input-1"]
    assert cluster["dispatcher"] == ["dispatcher"]
    config = tf_config(cluster, ReplicaName(Role.CHIEF, 0))
    assert config is not None
    assert set(json.loads(config)["cluster"]) == {"chief", "worker", "ps"}
    assert tf_config(cluster, ReplicaName(Role.INPUT, 0)) is None


def test_a_process_with_input_replicas_is_still_no_cluster() -> None:
    described = job(strategy="one_device", replicas=replicas(input=1, dispatcher=1))
    cluster = cluster_of(described, {name: str(name) for name in described.names()})
    assert cluster["dispatcher"] == ["dispatcher"]
    assert tf_config(cluster, ReplicaName(Role.CHIEF, 0)) is None


def test_a_job_of_one_process_has_no_tf_config_and_ignores_an_inherited_one() -> None:
    alone = job(strategy="one_device", replicas=[{"role": "chief"}])
    chief = ReplicaName(Role.CHIEF, 0)
    environment = replica_environment(alone, chief, {chief: "a:1"}, "try")
    environment["TF_CONFIG"] = '{"cluster": {"worker": ["somebody:1"]}}'
    set_tensorflow_variables(environment)
    assert "TF_CONFIG" not in environment


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
    ("module", "arguments", "sentence"),
    [
        (
            TRAIN,
            {"model": "m", "data": "d", "epoch": 1},
            "did you mean 'epochs'?",
        ),
        (TRAIN, {"data": "d"}, "needs model"),
        (
            TRAIN,
            {"model": "m", "data": "d", "epochs": 0},
            "epochs must be a whole",
        ),
        (
            TRAIN,
            {"model": "m", "data": "d", "batch_size": 1.5},
            "batch_size must be",
        ),
        (
            TRAIN,
            {"model": "m", "data": "d", "hparams": 3},
            "hparams of train must be an object, got 3",
        ),
        (
            TRAIN,
            {"model": "m", "data": "d", "class_weight": {"3": "2"}},
            "class_weight['3'] is '2'",
        ),
        (
            EVALUATE,
            {"model": "m", "data": "d", "thresholds": 0.9},
            "thresholds of evaluate must be an object, got 0.9",
        ),
        (
            EVALUATE,
            {"model": "m", "data": "d", "thresholds": {"accuracy": "high"}},
            "the threshold of 'accuracy' must be a number, got 'high'",
        ),
        (
            EVALUATE,
            {"model": "m", "data": "d", "batch_size": 0},
            "batch_size of evaluate must be 1 or more, got 0",
        ),
        (
            "aerotrain.serving.export",
            {"model": "m", "data": "d", "records": 0},
            "records of export must be 1 or more, got 0",
        ),
        ("aerotrain.data.prepare.plan", {"source": {}}, "names no kind"),
        ("aerotrain.data.prepare.plan", {"source": []}, "source of prepare must be an object"),
        (
            "aerotrain.data.prepare.plan",
            {"source": {"kind": "python"}, "splits": [0.7, 0.3]},
            "splits of prepare must be an object, got [0.7, 0.3]",
        ),
        (
            "aerotrain.data.prepare.plan",
            {"source": {"kind": "python"}, "splits": {"train": "1"}},
            "must be numbers above zero",
        ),
        (
            "aerotrain.data.prepare.plan",
            {"source": {"kind": "python"}, "key": 3},
            "key must be a list of columns",
        ),
        (
            "aerotrain.data.prepare.plan",
            {"source": {"kind": "python"}, "ranges": {"age": 3}},
            "the range of 'age' must be its least and its greatest value",
        ),
        (
            "aerotrain.data.prepare.plan",
            {
                "source": {"kind": "python"},
                "split_by": {"way": "time", "column": "day", "until": 3},
            },
            "the until of split_by 'time' must be an object",
        ),
        (
            "aerotrain.data.prepare.plan",
            {"source": {"kind": "python"}, "splits": {"train": 0.5, "test": 0.4}},
            "add up to 1",
        ),
    ],
)
def test_arguments_that_no_step_can_use_are_refused(
    module: str, arguments: dict[str, Any], sentence: str
) -> None:
    with pytest.raises(SpecError, match=re.escape(sentence)):
        ARGUMENTS[module].of(arguments)


def test_build_model_receives_the_loops_numbers_and_the_users_own() -> None:
    arguments = TrainArguments(model="m", data="d", epochs=2, hparams={"units": 8, "seed": 5})
    assert arguments.all_hparams == {"epochs": 2, "batch_size": 32, "seed": 5, "units": 8}


def test_the_default_splits_add_up() -> None:
    assert sum(PlanArguments(source={"kind": "python"}).splits.values()) == pytest.approx(1)


def test_an_unknown_role_has_no_count() -> None:
    assert job(strategy="one_device", replicas=[{"role": "chief"}]).count(Role.EVALUATOR) == 0
    assert ReplicaSpec(role=Role.PS).count == 1
