"""The metrics of a job, by Airflow's own client of StatsD."""

import json
import re
from collections.abc import Iterator
from dataclasses import replace
from importlib import import_module
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import yaml

from aerotrain.contract.event_log import Event, EventType
from aerotrain.contract.replicas import ReplicaName, Role
from aerotrain.launch.backend import LogLine
from aerotrain_airflow.goodput import JobMetrics, goodput_of
from support.statsd_server import StatsdServer, statsd_server
from support.waiting import wait_for

METRICS = Path(__file__).parent.parent / "docs" / "monitoring.md"
MONITORING = Path(__file__).parent.parent / "deploy" / "monitoring"

CHIEF, WORKER = ReplicaName(Role.CHIEF, 0), ReplicaName(Role.WORKER, 1)


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> Iterator[StatsdServer]:
    with statsd_server() as server:
        for name, value in server.environment.items():
            monkeypatch.setenv(name, value)
        yield server


@pytest.fixture(params=["airflow.sdk.observability", "airflow.observability"])
def stats(server: StatsdServer, request: pytest.FixtureRequest) -> Iterator[ModuleType]:
    """The module of a task, and that of the triggerer, as Airflow initializes them."""
    package: str = request.param
    utils: Any = import_module(f"{package}.metrics.stats_utils")
    stats: Any = import_module(f"{package}.stats")
    stats.initialize(factory=utils.get_stats_factory(), export_legacy_names=True)
    yield stats
    stats.initialize(factory=utils.NoStatsLogger, export_legacy_names=True)


def test_the_progress_of_the_chief_is_sent_with_dag_and_task(
    server: StatsdServer, stats: ModuleType
) -> None:
    metrics = JobMetrics(stats, "digits", "train")
    metrics.read(LogLine(WORKER, "progress step=9 steps=540 loss=0.9"))
    metrics.read(LogLine(CHIEF, "the checkpoint of step 240 is in the store"))
    said = "progress step=20 steps=540 loss=0.25 examples_per_second=42 input_wait=0.10"
    metrics.read(LogLine(CHIEF, said))
    metrics.read(LogLine(CHIEF, "drift columns=2"))
    wait_for("five metrics", lambda: len(server.of("airflow.aerotrain")) == 5, 10)
    names = ("drifted_columns", "examples_per_second", "input_wait", "loss", "step")
    values = dict(zip(names, ("2", "42.0", "0.1", "0.25", "20"), strict=True))
    tags = "dag_id=digits,task_id=train"
    expected = [f"airflow.aerotrain.{name},{tags}:{value}|g" for name, value in values.items()]
    assert sorted(server.received) == expected


def test_restarts_are_counted_by_role_and_kind_and_the_goodput_by_cause(
    server: StatsdServer, stats: ModuleType
) -> None:
    events = [
        Event(event=EventType.START, at=0),
        Event(event=EventType.START, at=4, replica="chief"),
        Event(event=EventType.RESTORE, at=10, step=0),
        Event(event=EventType.TRAIN, at=50, step=400, seconds=40),
        Event(event=EventType.DETECT, at=60, step=500, replica="worker-1", kind="node"),
        Event(event=EventType.RESTART, at=60, replica="worker-1"),
        Event(event=EventType.RESTART, at=60, replica="chief"),
        Event(event=EventType.RESTORE, at=70, step=400),
        Event(event=EventType.TRAIN, at=110, step=800, seconds=40),
    ]
    goodput = replace(goodput_of(events), core_hours={"worker": 2.5}, cost=0.25)
    JobMetrics(stats, "digits", "train").ended(events, goodput)
    wait_for("twelve metrics", lambda: len(server.received) == 12, 10)
    assert "airflow.aerotrain.queue_seconds,dag_id=digits,task_id=train:4|g" in server.received
    tags = "dag_id=digits,task_id=train"
    assert server.of("airflow.aerotrain.restarts") == [
        f"airflow.aerotrain.restarts,{tags},role=worker,kind=node:1|c",
        f"airflow.aerotrain.restarts,{tags},role=chief,kind=with_others:1|c",
    ]
    assert server.of("airflow.aerotrain.goodput")[0].startswith(
        f"airflow.aerotrain.goodput,{tags}:0.72"
    )
    assert server.of("airflow.aerotrain.core_hours") == [
        f"airflow.aerotrain.core_hours,{tags},role=worker:2.5|g"
    ]
    assert server.of("airflow.aerotrain.cost") == [f"airflow.aerotrain.cost,{tags}:0.25|g"]
    causes = [each.partition(",cause=")[2] for each in server.of("airflow.aerotrain.lost_seconds")]
    assert "recovery:10.0|g" in causes
    assert "save_stall:0|g" in causes
    assert "lost_work:0.0|g" in causes


def test_a_replica_that_is_named_as_slow_is_counted_at_once(
    server: StatsdServer, stats: ModuleType
) -> None:
    slow = Event(event=EventType.STRAGGLER, at=5, replica="worker-1")
    JobMetrics(stats, "digits", "train").recorded([Event(event=EventType.RESTART, at=5), slow])
    wait_for("a metric", lambda: bool(server.received), 10)
    tags = "dag_id=digits,task_id=train,replica=worker-1"
    assert server.received == [f"airflow.aerotrain.stragglers,{tags}:1|c"]


def test_the_dashboard_and_the_alerts_query_metrics_that_are_documented() -> None:
    dashboard = json.loads((MONITORING / "dashboard.json").read_text())
    queries = [target["expr"] for panel in dashboard["panels"] for target in panel["targets"]]
    rules = yaml.safe_load((MONITORING / "alerts.yaml").read_text())["groups"][0]["rules"]
    named = re.findall(r"airflow_aerotrain_(\w+)", "".join([*queries, *(r["expr"] for r in rules)]))
    _, _, section = METRICS.read_text().partition("\n## Metrics\n")
    sent = re.findall(r"^\| `(\w+)`", section.partition("\n## ")[0], re.MULTILINE)
    assert set(named) == set(sent)
