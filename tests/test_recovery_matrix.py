"""Which replicas restart after a failure: every row of the table in docs/recovery.md."""

from typing import Any

import pytest

from aerotrain.contract.event_log import Event, EventType, read
from aerotrain.launch.restart_policy import replicas_to_restart
from support.described_jobs import ALONE, FED, GANG, SERVED, job


@pytest.mark.parametrize(
    ("strategy", "replicas", "lost", "back"),
    [
        ("parameter_server", SERVED, "worker-1", "worker-1"),
        ("parameter_server", SERVED, "ps-0", "chief ps-0 ps-1"),
        ("parameter_server", SERVED, "chief", "chief"),
        ("parameter_server", SERVED, "worker-0 ps-1", "chief ps-0 ps-1 worker-0"),
        ("multi_worker_mirrored", GANG, "chief", "chief worker-0 worker-1"),
        ("multi_worker_mirrored", GANG, "worker-1", "chief worker-0 worker-1"),
        ("multi_worker_mirrored", GANG, "evaluator", "evaluator"),
        ("dtensor", GANG, "worker-0", "chief worker-0 worker-1"),
        ("dtensor", ALONE, "chief", "chief"),
        ("one_device", ALONE, "chief", "chief"),
        ("mirrored", ALONE, "evaluator", "evaluator"),
        ("tpu", ALONE, "chief evaluator", "chief evaluator"),
        ("one_device", [*ALONE, *FED], "input-1", "input-1"),
        ("one_device", [*ALONE, *FED], "chief", "chief"),
        ("parameter_server", [*SERVED, *FED], "input-0 input-1", "input-0 input-1"),
    ],
)
def test_each_failure_restarts_the_replicas_of_the_matrix(
    strategy: str, replicas: list[dict[str, Any]], lost: str, back: str
) -> None:
    described = job(strategy, replicas)
    names = {str(name): name for name in described.names()}
    found = replicas_to_restart(described, {names[each] for each in lost.split()})
    assert found == {names[each] for each in back.split()}


def test_an_event_log_is_read_back_equal_without_truncated_or_unknown_lines() -> None:
    entry = Event(
        event=EventType.RESTART, at=12.5, step=40, replica="worker-1", because="it crashed"
    )
    lines = [entry.to_json(), Event(event=EventType.END, at=13).to_json()[:9], '{"event": "later"}']
    assert read(lines) == [entry]
