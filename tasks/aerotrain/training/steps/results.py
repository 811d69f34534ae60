"""The results of metrics, under the names that ``fit`` logs."""

from collections.abc import Mapping
from typing import Any

import numpy as np


def flat(results: Mapping[str, Any]) -> dict[str, Any]:
    """``results`` by name; a dict of several results is replaced by its items."""
    parts = [
        (name, flat(value) if isinstance(value, Mapping) else {name: value})
        for name, value in results.items()
    ]
    # Of two results with one name, fit logs that of the metric whose own name sorts last.
    kept = {name: value for _, part in sorted(parts, key=_name) for name, value in part.items()}
    return {name: kept[name] for _, part in parts for name in part}


def numbers(results: Mapping[str, Any]) -> dict[str, float]:
    """A number for each of ``results``; the mean if a result has several, such as per class."""
    return {name: float(np.mean(value)) for name, value in flat(results).items()}


def _name(part: tuple[str, Any]) -> str:
    return part[0]
