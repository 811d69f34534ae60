"""How the GPUs of one machine are divided among the replicas of a job, and what pods see of them.

No machine of these tests has a GPU: what a driver would do with these variables is not seen here.
"""

from pathlib import Path
from typing import Any

import pytest

from aerotrain.contract.environment import replica_environment
from aerotrain.contract.errors import SpecError
from aerotrain.contract.job import Job
from aerotrain.launch.process.backend import ProcessBackend
from aerotrain.launch.process.gpus import VISIBLE, divided, gpus_of
from aerotrain_airflow.kubernetes.plan import PodSettings, plan_pods


def job(strategy: str, gpus: dict[str, int] | None = None, **counts: int) -> Job:
    known = gpus or {}
    replicas: list[dict[str, Any]] = [
        {"role": role, "count": count, "resources": {"gpu": known.get(role, 0)}}
        for role, count in {"chief": 1, **counts}.items()
    ]
    return Job.from_dict(
        {
            "name": "train-1",
            "module": "aerotrain.training.train",
            "store": "s3://store",
            "run": "run",
            "task": "train",
            "strategy": strategy,
            "replicas": replicas,
            "arguments": {},
        }
    )


PS = {"worker": 2, "ps": 1}

#: A variable of a pod without GPUs.
HIDDEN = str({"name": VISIBLE, "value": "-1"})


@pytest.mark.parametrize(
    ("made", "gpus", "expected"),
    [
        (job("one_device"), "", {}),
        (job("one_device", {"chief": 1}), "", {}),  # the same pipeline on a laptop
        (job("one_device"), "0", {"chief": "0"}),
        (job("mirrored"), "0 1 2 3", {"chief": "0,1,2,3"}),
        (job("mirrored", {"chief": 2}), "0 1 2 3", {"chief": "0,1"}),
        (job("mirrored", evaluator=1), "0 1", {"chief": "0,1"}),
        (
            job("mirrored", {"chief": 1, "evaluator": 1}, evaluator=1),
            "0 1",
            {"chief": "0", "evaluator": "1"},
        ),
        (job("multi_worker_mirrored", worker=1), "0 1", {"chief": "0", "worker-0": "1"}),
        (job("multi_worker_mirrored", worker=1), "0 1 2", {"chief": "0", "worker-0": "1"}),
        (job("multi_worker_mirrored", worker=1), "5 7 8 9", {"chief": "5,7", "worker-0": "8,9"}),
        (job("parameter_server", **PS), "0 1", {"worker-0": "0", "worker-1": "1"}),
        (
            job("parameter_server", **PS, input=1),
            "GPU-a GPU-b",
            {"worker-0": "GPU-a", "worker-1": "GPU-b"},
        ),
    ],
)
def test_replicas_that_train_get_equal_shares_or_what_their_role_asks_for(
    made: Job, gpus: str, expected: dict[str, str]
) -> None:
    found = {str(name): each[VISIBLE] for name, each in divided(made, gpus.split()).items()}
    assert found == expected


@pytest.mark.parametrize(
    ("made", "gpus", "message"),
    [
        (job("multi_worker_mirrored", worker=2), 2, "needs 3 GPUs for 3 replicas"),
        (job("parameter_server", **PS), 1, "needs 2 GPUs for 2 replicas"),
        (job("mirrored", {"chief": 4}), 2, "needs 4 GPUs for 1 replica,"),
    ],
)
def test_more_replicas_than_gpus_are_one_error_before_anything_starts(
    tmp_path: Path, made: Job, gpus: int, message: str
) -> None:
    backend = ProcessBackend(tmp_path, {VISIBLE: ",".join(map(str, range(gpus)))}, "try-1")
    with pytest.raises(SpecError, match=f"{message}.* this machine has {gpus}; ask for fewer"):
        backend.plan(made, "1")
    assert not [*tmp_path.iterdir()]


@pytest.mark.parametrize(
    ("environment", "devices", "expected"),
    [
        ({}, [], []),
        ({}, ["nvidia0", "nvidia1", "nvidiactl", "nvidia-uvm"], ["0", "1"]),
        ({VISIBLE: "3, 1"}, ["nvidia0"], ["3", "1"]),
        ({VISIBLE: "MIG-a,-1,2"}, [], ["MIG-a"]),
        ({VISIBLE: "-1"}, ["nvidia0"], []),
        ({VISIBLE: ""}, ["nvidia0"], []),
    ],
)
def test_the_gpus_of_a_machine_are_its_devices_or_those_that_the_user_has_left(
    tmp_path: Path, environment: dict[str, str], devices: list[str], expected: list[str]
) -> None:
    for each in devices:
        (tmp_path / each).touch()
    assert gpus_of(environment, tmp_path) == expected


@pytest.mark.parametrize(
    ("made", "hidden"),
    [
        (job("parameter_server", **PS, evaluator=1), "chief ps-0 evaluator"),
        (job("parameter_server", {"evaluator": 1}, **PS, evaluator=1), "chief ps-0"),
        (job("one_device", input=1), "input-0"),
        (job("multi_worker_mirrored", worker=2), ""),
    ],
)
def test_what_serves_or_evaluates_sees_no_gpu_unless_it_asks_for_one(
    made: Job, hidden: str
) -> None:
    addresses = dict.fromkeys(made.names(), "host:1")
    found = [
        str(name)
        for name in made.names()
        if replica_environment(made, name, addresses, "1").get(VISIBLE) == "-1"
    ]
    assert found == hidden.split()
    pods = plan_pods(made, "1", PodSettings(namespace="aerotrain", image="image")).pods
    assert [pod["spec"]["hostname"] for pod in pods if HIDDEN in str(pod)] == found
