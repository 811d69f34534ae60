"""The replicas of the steps, of which the form of a run gives the counts and the resources."""

from collections.abc import Mapping
from typing import Any

from aerotrain_airflow.params import RunParam, RunResources, RunSwitch

PodTemplate = Mapping[str, Any]


def chief(environment: Mapping[str, str] | None, pod: PodTemplate | None) -> dict[str, Any]:
    """The only replica of a step other than training."""
    return {
        "role": "chief",
        "resources": RunResources("resources", "chief"),
        "environment": dict(environment or {}),
        "pod": dict(pod or {}),
    }


def replicas_of_training(
    environment: Mapping[str, str], pods: Mapping[str, PodTemplate]
) -> list[dict[str, Any]]:
    """The replicas of a training."""
    counts = {
        "chief": 1,
        "worker": RunParam("workers"),
        "ps": RunParam("ps"),
        "evaluator": RunSwitch("evaluator"),
        "input": RunParam("data_workers"),
        "dispatcher": RunSwitch("data_workers"),
    }
    return [
        {
            "role": role,
            "count": count,
            "resources": RunResources("resources", role),
            "environment": dict(environment),
            "pod": dict(pods.get(role, {})),
        }
        for role, count in counts.items()
    ]
