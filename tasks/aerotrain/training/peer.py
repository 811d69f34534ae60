"""A worker that runs the chief's loop, and leaves it to the chief to write and to speak."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from aerotrain.training.checkpoints.checkpoints import Checkpoints
from aerotrain.training.hooks.report import Report
from aerotrain.training.steps.step import MetricValues


class PeerCheckpoints(Checkpoints):
    """Restores what the chief restores, and writes nothing.

    The variables of a model and its optimizer are whole on every replica, so that the chief
    can write them without its peers.
    """

    def save(self, *_about: Any) -> None:
        """Leave it to the chief."""


class PeerReport(Report):
    """Keeps the metrics, and says nothing."""

    def progress(self, step: int, sums: MetricValues) -> None:
        """Leave it to the chief."""

    def epoch(self, number: int, metrics: Mapping[str, float]) -> None:
        self.metrics = dict(metrics)

    def publish(self, logs: Sequence[Path] = ()) -> None:
        """Leave it to the chief."""
