"""The next try omits workers that could not be scheduled: pure, from earlier event logs."""

from dataclasses import replace

import pytest

from aerotrain.contract.event_log import Event, EventType
from aerotrain.contract.replicas import Role
from aerotrain.contract.status import Failure
from aerotrain.launch.restart_policy import with_fewer_workers
from support.described_jobs import SERVED, job

FOUR = [{"role": "chief"}, {"role": "worker", "count": 4}, {"role": "ps"}]
START = Event(event=EventType.START, at=0)
CHIEFS_START = Event(event=EventType.START, at=1, replica="chief")


def without_place(replica: str, kind: Failure = Failure.START) -> Event:
    return Event(event=EventType.DETECT, at=2, replica=replica, kind=kind.value)


def back(replica: str) -> Event:
    return Event(event=EventType.RESTART, at=3, replica=replica)


@pytest.mark.parametrize(
    ("log", "workers"),
    [
        ([], 4),
        ([START, CHIEFS_START], 4),
        ([START, without_place("worker-0", Failure.NODE), without_place("worker-3")], 2),
        ([START, without_place("worker-3"), back("worker-3")], 4),
        ([START, without_place("worker-3", Failure.CRASH)], 4),
        ([START, without_place("ps-0"), without_place("chief")], 4),
        # Each group has fewer workers: its worker-0 is not the worker-0 of the group before.
        ([START, without_place("worker-0"), START, without_place("worker-0")], 2),
        ([START, CHIEFS_START, *(without_place(f"worker-{index}") for index in range(4))], 2),
    ],
)
def test_the_next_try_omits_workers_that_could_not_be_scheduled(
    log: list[Event], workers: int
) -> None:
    asked = replace(job("parameter_server", FOUR), min_workers=2)
    assert with_fewer_workers(asked, log).count(Role.WORKER) == workers


def test_without_min_workers_every_try_is_the_same_job() -> None:
    asked = job("parameter_server", SERVED)
    assert with_fewer_workers(asked, [START, without_place("worker-0")]) is asked
