"""By when something has to be true of a set of pods: pure."""

from dataclasses import replace

import pytest

from aerotrain.contract.job import ReplicaName
from aerotrain.contract.limits import Deadlines
from aerotrain.contract.status import Observation, State
from aerotrain_airflow.pods.deadlines import deadlines, missed, next_of, to_be_looked_at
from aerotrain_airflow.pods.observed import ReplicaStatus
from test_recovery_matrix import GANG, job

JOB = replace(job("multi_worker_mirrored", GANG), deadlines=Deadlines(start=600, run=3600))
RUNS = ReplicaStatus(seen=Observation(state=State.RUNNING), created=0, started=5)
FULL = Observation(state=State.PENDING, reason="waits for a node: Insufficient cpu")
RUNNING = dict.fromkeys(JOB.names(), RUNS)
WORKER = [*JOB.names()][1]


def waiting(since: float, started: float | None = None) -> dict[ReplicaName, ReplicaStatus]:
    """All run but a worker, whose pod was made then."""
    return {**RUNNING, WORKER: ReplicaStatus(seen=FULL, created=since, started=started)}


@pytest.mark.parametrize(
    ("replicas", "until", "at", "sentence"),
    [
        (RUNNING, None, 3600, "ran for longer than its deadline of 3600 s"),
        (RUNNING, 900, 900, "ran for longer than its task's execution_timeout"),
        (waiting(0), 900, 600, "1 of 4 replicas of job did not start within 600 s"),
        (waiting(0), None, 600, "worker-0 waits for a node: Insufficient cpu"),
        # Who comes back late has as long to start, and the job not a second more to run.
        (waiting(2000), None, 2600, "did not start within 600 s"),
        (waiting(3500), None, 3600, "ran for longer than its deadline of 3600 s"),
        # What ran already does not start late, whatever its pod shows now.
        (waiting(0, started=5), None, 3600, "ran for longer than its deadline of 3600 s"),
        # Of what was not looked at yet, nothing can be late.
        ({}, None, 3600, "ran for longer than its deadline of 3600 s"),
    ],
)
def test_the_deadline_that_passes_first_says_what_was_late(
    replicas: dict[ReplicaName, ReplicaStatus], until: float | None, at: float, sentence: str
) -> None:
    given = deadlines(JOB, replicas, 0, until)
    assert next_of(given, 0) == at
    assert missed(given, at - 1, looked=at) is None
    late = missed(given, at, looked=at)
    assert late is not None
    assert sentence in late.message


def test_a_start_is_late_only_if_that_was_seen_after_its_deadline() -> None:
    given = deadlines(JOB, waiting(0), 0, until=None)
    for looked in (None, 0, 599):
        assert missed(given, 700, looked) is None
        assert to_be_looked_at(given, 700)
    assert not to_be_looked_at(given, 599)
    assert missed(given, 700, looked=600) is not None
    # An API that is away keeps no job beyond its own deadline.
    ended = missed(given, 3600, looked=599)
    assert ended is not None
    assert "ran for longer" in ended.message


def test_who_came_back_a_moment_ago_is_not_said_to_have_had_no_place() -> None:
    both = {**waiting(0), JOB_CHIEF: ReplicaStatus(seen=FULL, created=590)}
    late = missed(deadlines(JOB, both, 0, until=None), 600, looked=600)
    assert late is not None
    assert list(late.waiting) == [WORKER]


JOB_CHIEF = next(iter(JOB.names()))
