"""A worker that runs the chief's loop, and writes and prints nothing."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from aerotrain.training.checkpoints.checkpoints import Checkpoints
from aerotrain.training.hooks.report import Report
from aerotrain.training.steps.metric_state import MetricValues


class PeerCheckpoints(Checkpoints):
    """Restores what the chief restores, and saves nothing.

    Every replica has all variables of a model and its optimizer, so the chief can save them without
    its peers.
    """

    def save(self, *_about: Any) -> None:
        """Do nothing; the chief saves."""


class PeerReport(Report):
    """Keeps the metrics, and reports nothing."""

    def progress(self, step: int, sums: MetricValues) -> None:
        """Do nothing; the chief reports."""

    def epoch(self, number: int, metrics: Mapping[str, float]) -> None:
        self.metrics = dict(metrics)

    def publish(self, logs: Sequence[Path] = ()) -> None:
        """Do nothing; the chief publishes."""
