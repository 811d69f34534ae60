"""Which quotas can never admit all pods of a job: pure."""

from typing import Any

import pytest

from aerotrain_airflow.kubernetes.quota import too_small


def pod(*containers: dict[str, Any], first: tuple[dict[str, Any], ...] = ()) -> dict[str, Any]:
    spec: dict[str, Any] = {"containers": [{"resources": each} for each in containers]}
    return {"spec": {**spec, "initContainers": [{"resources": each} for each in first]}}


def of(cpu: str, memory: str) -> dict[str, Any]:
    return {"requests": {"cpu": cpu, "memory": memory}, "limits": {"memory": memory}}


#: A chief, and three workers with a side-car each.
PODS = [(pod(of("250m", "1Gi")), 1), (pod(of("2", "2Gi"), of("500m", "512Mi")), 3)]


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
    def found(hard: str) -> list[tuple[str, str, str, str]]:
        return too_small(PODS, [{"metadata": {"name": "few"}, "spec": {"hard": {key: hard}}}])

    assert found(enough) == []
    if short is not None:
        assert found(short) == [("few", key, needed, str(short))]


def test_init_containers_count_as_far_as_they_need_more_than_the_others() -> None:
    quota = {"metadata": {"name": "few"}, "spec": {"hard": {"cpu": "2"}}}
    assert not too_small([(pod(of("1", "1Gi"), first=(of("2", "1Gi"),)), 1)], [quota])
    [found] = too_small([(pod(of("1", "1Gi"), first=(of("3", "1Gi"),)), 1)], [quota])
    assert found[2] == "3"


def test_a_quota_for_some_pods_only_is_left_out() -> None:
    quota = {"metadata": {"name": "best"}, "spec": {"hard": {"pods": 1}, "scopes": ["BestEffort"]}}
    assert not too_small(PODS, [quota])
