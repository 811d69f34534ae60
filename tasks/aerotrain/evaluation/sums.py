"""The sums that all figures of an evaluation are computed from: states by slice and group."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import tensorflow as tf
from numpy.typing import NDArray

from aerotrain.evaluation.intervals import GROUPS, Estimate, Floats, estimate, samples
from aerotrain.evaluation.metrics import CellMetrics, Names, States
from aerotrain.evaluation.records import BASELINE, CANDIDATE, Block
from aerotrain.evaluation.slices import Slicing

#: The relative difference of two metrics that rounding explains. A model and its own export differ
#: by 2e-7, because TensorFlow computes them in another order, and often in one direction.
_ROUNDING = 1e-5


@dataclass(frozen=True)
class Figures:
    """Metrics of one model in one slice: each value, and its values in the samples.

    ``undefined`` are the names of those that the records of the slice do not determine.
    """

    values: Mapping[str, float]
    sampled: Mapping[str, Floats]
    undefined: frozenset[str]


@dataclass
class Sums:
    """The states of the metrics ``names`` of each model, for the slices of one ``slicing``."""

    metrics: CellMetrics
    names: Names
    slicing: Slicing
    models: Sequence[str]
    _records: NDArray[np.int64] = field(default_factory=lambda: np.zeros((0, GROUPS), np.int64))
    _states: dict[str, States] = field(default_factory=dict)
    _figures: dict[tuple[str, int], Figures] = field(default_factory=dict)

    def add(self, block: Block) -> None:
        """Add records."""
        slices = self.slicing.numbers(block.features, len(block.groups))
        self._grow()
        # Numbers of 16 bits are sorted in one pass.
        places = (slices * GROUPS + block.groups).astype(np.uint16)
        order = np.argsort(places, kind="stable")
        counts = np.bincount(places)
        cells = np.flatnonzero(counts)
        counts = counts[cells]

        def sorted_(structure: Any) -> Any:
            return tf.nest.map_structure(
                lambda each: None if each is None else tf.gather(each, order), structure
            )

        self._records.reshape(-1)[cells] += counts
        for model in self.models:
            records = sorted_(block.of(model))
            states = self.metrics.states(records, np.cumsum(counts), self.names)
            for total, each in zip(self._states[model], states, strict=True):
                total[cells] += each

    def _grow(self) -> None:
        missing = len(self.slicing.names) - len(self._records)
        self._records = np.concatenate([self._records, np.zeros((missing, GROUPS), np.int64)])
        for model in self.models:
            old = self._states.get(model, [each[:0] for each in self._empty(1)])
            new = self._empty(missing * GROUPS)
            self._states[model] = [np.concatenate(pair) for pair in zip(old, new, strict=True)]

    def _empty(self, cells: int) -> States:
        zeros = self.metrics.zeros(self.names)
        return [np.zeros((cells, *each.shape), np.float64) for each in zeros]

    def records(self, number: int) -> int:
        """The records of a slice, by its number."""
        return int(self._records[number].sum())

    def groups(self, number: int) -> int:
        """The groups that have records of a slice."""
        return int(np.count_nonzero(self._records[number]))

    def figures(self, model: str, number: int) -> Figures:
        """The metrics of a model in a slice, once all records are added."""
        if (model, number) not in self._figures:
            self._figures[model, number] = self._computed(model, number)
        return self._figures[model, number]

    def _computed(self, model: str, number: int) -> Figures:
        cells = slice(number * GROUPS, (number + 1) * GROUPS)
        # The first sample has every group once, and gives the values themselves.
        weights = np.concatenate([np.ones((1, GROUPS)), samples()])
        drawn = [
            np.tensordot(weights, states[cells], axes=1).astype(zero.dtype)
            for states, zero in zip(
                self._states[model], self.metrics.zeros(self.names), strict=True
            )
        ]
        results = self.metrics.results(drawn, self.names)
        return Figures(
            {name: float(each[0]) for name, each in results.items()},
            {name: each[1:] for name, each in results.items()},
            self.metrics.undefined([each[0] for each in drawn], self.names),
        )

    def estimate(self, model: str, name: str, number: int) -> Estimate:
        """The metric of that name of a model in a slice, with its error."""
        figures = self.figures(model, number)
        found = estimate(figures.values[name], figures.sampled[name], self.groups(number))
        return replace(found, range=(0.0, 1.0)) if self.metrics.is_rate(name) else found

    def difference(self, name: str, number: int) -> Estimate:
        """How much greater the candidate's metric is; both samples have the same records."""
        candidate, baseline = self.figures(CANDIDATE, number), self.figures(BASELINE, number)
        ours, theirs = candidate.values[name], baseline.values[name]
        found = estimate(
            0.0 if math.isclose(ours, theirs, rel_tol=_ROUNDING) else ours - theirs,
            candidate.sampled[name] - baseline.sampled[name],
            self.groups(number),
        )
        return replace(found, range=(-1.0, 1.0)) if self.metrics.is_rate(name) else found
