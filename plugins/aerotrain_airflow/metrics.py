"""Metrics of running jobs, sent as Airflow's own are: by StatsD or OpenTelemetry.

``[metrics]`` in Airflow's configuration turns them on. Their names begin with ``aerotrain``; the
tags are ``dag_id`` and ``task_id``, and ``role``, ``kind`` or ``cause`` from fixed lists. While a
task is deferred, the triggerer sends the progress.

https://airflow.apache.org/docs/apache-airflow/stable/administration-and-deployment/logging-monitoring/metrics.html
"""

from collections.abc import Iterable
from dataclasses import asdict
from typing import Any

from aerotrain.contract.event_log import Event, EventType
from aerotrain.contract.replicas import Role
from aerotrain.contract.status import Drift, Progress
from aerotrain.launch.backend import LogLine
from aerotrain_airflow.goodput import Goodput


class JobMetrics:
    """The metrics of one job. ``stats`` is the module of Airflow that sends them."""

    def __init__(self, stats: Any, dag_id: str, task_id: str) -> None:
        self._stats = stats
        self._tags = {"dag_id": dag_id, "task_id": task_id}

    def read(self, line: LogLine) -> None:
        """Send the progress, or the drift of data, in a line of the chief, if it has any."""
        if line.replica.role is not Role.CHIEF:
            return
        if (progress := Progress.parse(line.text)) is not None:
            for name, value in asdict(progress).items():
                if value is not None and name != "steps":
                    self._gauge(name, value)
        elif (drift := Drift.parse(line.text)) is not None:
            self._gauge("drifted_columns", drift.columns)

    def ended(self, events: Iterable[Event], goodput: Goodput) -> None:
        """Send the restarts of a replica group, from its events, and the goodput of its run."""
        failed: dict[str, str] = {}
        for event in events:
            if event.event is EventType.DETECT:
                failed[event.replica] = event.kind
            elif event.event is EventType.RESTART:
                kind = failed.pop(event.replica, "with others")
                role, _, _ = event.replica.partition("-")
                tags = {**self._tags, "role": role, "kind": kind.replace(" ", "_")}
                self._stats.incr("aerotrain.restarts", tags=tags)
        if goodput.goodput is not None:
            self._gauge("goodput", goodput.goodput)
        if goodput.queued is not None:
            self._gauge("queue_seconds", goodput.queued)
        for cause, seconds in goodput.lost.items():
            self._gauge("lost_seconds", seconds, cause=cause.replace(" ", "_"))

    def _gauge(self, name: str, value: float, **tags: str) -> None:
        self._stats.gauge(f"aerotrain.{name}", value, tags={**self._tags, **tags})
