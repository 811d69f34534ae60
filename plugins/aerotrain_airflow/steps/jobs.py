"""What the steps have in common: the replicas of their jobs, and tasks over partitions."""

from collections.abc import Mapping, Sequence
from inspect import signature
from typing import Any

from airflow.sdk import BaseOperator, XComArg

from aerotrain_airflow.operators.job import JobOperator
from aerotrain_airflow.params import WHERE, RunParam, RunResources, RunSwitch

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


#: The names of the arguments of Airflow's operators.
_OPERATOR = frozenset(signature(BaseOperator.__init__).parameters)


def by_partitions(
    package: str,
    arguments: Mapping[str, Any],
    output: str,
    *,
    doc: str,
    pool: str | None,
    operator: Mapping[str, Any],
    replicas: Sequence[Mapping[str, Any]] = (),
) -> tuple[JobOperator, XComArg]:
    """The tasks ``plan``, ``partition`` and ``finalize`` of a package, in this order.

    The argument ``output`` of the last two is what the plan calls so. ``operator`` are arguments of
    all three operators, of which the last one alone updates assets. Returns the first task, and the
    value of the last one.
    """
    described = {"replicas": list(replicas)} if replicas else {}
    common = {**WHERE, **{name: each for name, each in operator.items() if name != "outlets"}}
    bounded = {} if pool is None else {"pool": pool}
    plan = JobOperator(
        task_id="plan",
        job={"module": f"{package}.plan", **described, "arguments": dict(arguments)},
        return_key="partitions",
        **common,
    )
    partitions = JobOperator.partial(
        task_id="partition",
        job={"module": f"{package}.partition", **described},
        doc_md=doc,
        **common,
        **bounded,
    ).expand(arguments=plan.output)
    finalize = JobOperator(
        task_id="finalize",
        job={"module": f"{package}.finalize", "arguments": {output: XComArg(plan, output)}},
        # No partition is left to write where the output is complete already.
        trigger_rule="none_failed",
        outlets=operator.get("outlets"),
        **common,
    )
    plan >> partitions >> finalize
    return plan, finalize.output


def separated(other: Mapping[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
    """The arguments of a step's own, and those of Airflow's operators."""
    return (
        {name: each for name, each in other.items() if name not in _OPERATOR},
        {name: each for name, each in other.items() if name in _OPERATOR},
    )
