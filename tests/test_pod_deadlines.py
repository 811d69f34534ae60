"""By when something has to be true of a set of pods: pure."""

from dataclasses import replace

import pytest

from aerotrain.contract.limits import Deadlines
from aerotrain.contract.status import Observation, State
from aerotrain_airflow.pods.deadlines import nearest_deadline
from test_recovery_matrix import GANG, job

JOB = replace(job("multi_worker_mirrored", GANG), deadlines=Deadlines(start=600, run=3600))
RUNNING = dict.fromkeys(JOB.names(), Observation(state=State.RUNNING))
FULL = Observation(state=State.PENDING, reason="waits for a node: Insufficient cpu")
WAITING = {**RUNNING, [*JOB.names()][1]: FULL}


@pytest.mark.parametrize(
    ("seen", "starts", "until", "at", "sentence"),
    [
        (RUNNING, 0, None, 3600, "ran for longer than its deadline of 3600 s"),
        (RUNNING, 0, 900, 900, "ran for longer than its task's execution_timeout"),
        (WAITING, 0, 900, 600, "1 of 4 replicas of job did not start within 600 s"),
        (WAITING, 0, None, 600, "worker-0 waits for a node: Insufficient cpu"),
        # Who comes back late has as long to start, and the job not a second more to run.
        (WAITING, 2000, None, 2600, "did not start within 600 s"),
        (WAITING, 3500, None, 3600, "ran for longer than its deadline of 3600 s"),
    ],
)
def test_the_deadline_that_passes_first_says_what_was_late(
    seen: dict[object, Observation], starts: float, until: float | None, at: float, sentence: str
) -> None:
    nearest = nearest_deadline(JOB, seen, 0, starts, until)
    assert nearest.at == at
    assert sentence in nearest.message
