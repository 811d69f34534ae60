"""The rules of a gate, as functions for a DAG file::

    evaluate(model, data, gate=[
        at_least("accuracy", 0.95),
        no_worse("auc", by=0.002, slices=["country", bucket("age", 4)]),
    ], first_run="accept")

``aerotrain.contract.gate.Rule`` describes their arguments.
"""

from collections.abc import Sequence
from typing import Any

from aerotrain.contract.gate import RuleKind


def at_least(metric: str, bound: Any, **others: Any) -> dict[str, Any]:
    """Refuse a model whose metric is below ``bound``, which may be a param of the run."""
    return {"kind": RuleKind.AT_LEAST.value, "metric": metric, "bound": bound, **others}


def at_most(metric: str, bound: Any, **others: Any) -> dict[str, Any]:
    """Refuse a model whose metric, such as an error, is above ``bound``."""
    return {"kind": RuleKind.AT_MOST.value, "metric": metric, "bound": bound, **others}


def no_worse(metric: str, *, by: Any = 0.0, **others: Any) -> dict[str, Any]:
    """Refuse a model that is worse than the baseline by more than ``by``.

    Both are measured on the same records. The model is refused if a loss of ``by`` or less would
    show a difference as large as the measured one with a probability below ``level`` only.
    ``aerotrain.evaluation.intervals`` says how that is estimated.
    """
    return {"kind": RuleKind.NO_WORSE.value, "metric": metric, "by": by, **others}


def bucket(column: str, buckets: int | Sequence[float]) -> dict[str, Any]:
    """Slices of a number: that many quantiles of it, or the ranges between rising boundaries."""
    return {"column": column, "buckets": buckets if isinstance(buckets, int) else list(buckets)}
