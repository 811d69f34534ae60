"""Which quotas can never admit all pods of a job: pure."""

import re
from typing import Any

import pytest

from aerotrain.contract.errors import FinalError
from aerotrain_airflow.kubernetes.access import check_quotas
from aerotrain_airflow.kubernetes.plan import PodSettings, plan_pods
from support.kubernetes_worlds import described


def container(cpu: str, memory: str) -> dict[str, Any]:
    requests = {"cpu": cpu, "memory": memory}
    return {"name": "other", "resources": {"requests": requests, "limits": {"memory": memory}}}


def check(hard: dict[str, Any], first: str = "0", **spec: Any) -> None:
    """Check a quota for a chief, and three workers with a side-car and an init container each."""
    extra = {
        "containers": [{"name": "replica"}, container("500m", "512Mi")],
        "initContainers": [container(first, "1Gi")],
    }
    job = described(
        "s3://bucket",
        strategy="multi_worker_mirrored",
        replicas=[
            {"role": "chief", "resources": {"cpu": 0.25, "memory": "1Gi"}},
            {
                "role": "worker",
                "count": 3,
                "resources": {"cpu": 2, "memory": "2Gi"},
                "pod": {"spec": extra},
            },
        ],
    )
    plan = plan_pods(job, "try-1", PodSettings(namespace="default", image="image:1"))
    quota = {"metadata": {"name": "few"}, "spec": {"hard": hard, **spec}}
    check_quotas(plan, plan.pods[:2], [quota])


@pytest.mark.parametrize(
    ("key", "enough", "short", "needed"),
    [
        ("pods", 4, 3, "4"),
        ("count/pods", "4", "3", "4"),
        ("cpu", "7750m", "7.7", "7.75"),
        ("requests.cpu", "8", "7", "7.75"),
        ("memory", "8704Mi", "8Gi", "8704Mi"),
        ("limits.memory", "8704Mi", "8703Mi", "8704Mi"),
        ("limits.cpu", "0", None, ""),  # the API itself rejects a pod that sets none
        ("requests.nvidia.com/gpu", "0", None, ""),
        ("services", "0", None, ""),
    ],
)
def test_a_quota_below_the_sum_of_all_pods_is_too_small(
    key: str, enough: str, short: str | None, needed: str
) -> None:
    check({key: enough})
    if short is not None:
        message = f"need {needed} {key} together, and the quota few of namespace default"
        with pytest.raises(FinalError, match=re.escape(message)):
            check({key: short})


def test_init_containers_count_as_far_as_they_need_more_than_the_others() -> None:
    check({"cpu": "7750m"}, first="2500m")
    with pytest.raises(FinalError, match=r"need 9\.25 cpu together"):
        check({"cpu": "7750m"}, first="3")


def test_a_quota_for_some_pods_only_is_left_out() -> None:
    check({"pods": 1}, scopes=["BestEffort"])
