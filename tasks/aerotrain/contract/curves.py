"""The curves of a training: its loss, rates and metrics, in a limited number of points.

The chief writes them as JSON lines while it trains, so that they can be read without TensorFlow.
The first line has the number of steps and the URL of the data set, each other one is a point. When
there are too many points, pairs of them are merged: a point has the last values, and the least and
greatest of all that it stands for, so no extreme is lost.
"""

import json
import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from functools import reduce
from typing import Any, Self

from aerotrain.contract.errors import SpecError
from aerotrain.contract.validation import read

#: The most points of a curve: a screen shows no more of them apart.
MOST_POINTS = 600


@dataclass(frozen=True, kw_only=True)
class Point:
    """Metrics by name at the time ``at`` of ``time.time()``, when ``step`` steps were done.

    A point with an ``epoch``, counted from 0, has the metrics of that epoch. ``merged`` is the
    number of measured points that it stands for; ``lowest`` and ``highest`` are the extremes of
    these, and are empty for a single one.
    """

    at: float
    step: int
    metrics: Mapping[str, float] = field(default_factory=dict)
    epoch: int | None = None
    merged: int = 1
    lowest: Mapping[str, float] = field(default_factory=dict)
    highest: Mapping[str, float] = field(default_factory=dict)

    def to_json(self) -> str:
        """One line; values that are not finite, which JSON does not have, are omitted."""
        values: dict[str, Any] = {"at": round(self.at, 3), "step": self.step}
        if self.epoch is not None:
            values["epoch"] = self.epoch
        values["metrics"] = _short(self.metrics)
        if self.merged > 1:
            extremes = {"lowest": _short(self.lowest), "highest": _short(self.highest)}
            values |= {"merged": self.merged, **extremes}
        return json.dumps(values)


def _short(metrics: Mapping[str, float]) -> dict[str, float]:
    return {name: float(f"{each:.5g}") for name, each in metrics.items() if math.isfinite(each)}


def merge(earlier: Point, later: Point) -> Point:
    """One point for both, with the last value of each metric, which one of them may lack."""
    return Point(
        at=later.at,
        step=later.step,
        metrics={**earlier.metrics, **later.metrics},
        epoch=later.epoch,
        merged=earlier.merged + later.merged,
        lowest=_extremes(min, earlier.lowest, earlier.metrics, later.lowest, later.metrics),
        highest=_extremes(max, earlier.highest, earlier.metrics, later.highest, later.metrics),
    )


def _extremes(
    choose: Callable[[Iterable[float]], float], *sets: Mapping[str, float]
) -> dict[str, float]:
    """The extreme by name, of values that are finite."""
    values: dict[str, list[float]] = {}
    for metrics in sets:
        for name, value in metrics.items():
            if math.isfinite(value):
                values.setdefault(name, []).append(value)
    return {name: choose(each) for name, each in values.items()}


class Curve:
    """At most ``MOST_POINTS``, of which each but the last stands for equally many measured ones."""

    def __init__(self, points: Iterable[Point] = ()) -> None:
        self.points = list(points)
        self._width = max((each.merged for each in self.points), default=1)

    def add(self, point: Point) -> None:
        """Add a later point."""
        if self.points and self.points[-1].merged + point.merged <= self._width:
            self.points[-1] = merge(self.points[-1], point)
            return
        if len(self.points) >= MOST_POINTS:
            self._width *= 2
            pairs = [self.points[at : at + 2] for at in range(0, len(self.points), 2)]
            self.points = [reduce(merge, pair) for pair in pairs]
        self.points.append(point)


class Curves:
    """The curves of a training of ``steps`` steps: one during its epochs, one of whole epochs.

    ``data`` is the URL of its data set.
    """

    def __init__(self, steps: int, data: str, points: Iterable[Point] = ()) -> None:
        self.steps = steps
        self.data = data
        found = list(points)
        self.during = Curve(each for each in found if each.epoch is None)
        self.of_epochs = Curve(each for each in found if each.epoch is not None)

    def add(self, point: Point) -> None:
        """Add a point, by whether it is of an epoch."""
        (self.during if point.epoch is None else self.of_epochs).add(point)

    @property
    def points(self) -> list[Point]:
        """All points, in the order of their times."""
        return sorted([*self.during.points, *self.of_epochs.points], key=lambda each: each.at)

    def to_bytes(self) -> bytes:
        """As JSON lines."""
        head = {"version": 1, "steps": self.steps, "data": self.data}
        return "\n".join([json.dumps(head), *(each.to_json() for each in self.points), ""]).encode()

    @classmethod
    def from_bytes(cls, content: bytes) -> Self:
        """Read JSON lines; a line that is no point, as of a later version, is skipped."""
        lines = content.decode().splitlines()
        head = json.loads(lines[0]) if lines else {}
        points = []
        for line in lines[1:]:
            try:
                points.append(read(Point, json.loads(line), strict=False))
            except (ValueError, SpecError):
                continue
        return cls(head.get("steps", 0), head.get("data", ""), points)
