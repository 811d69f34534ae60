"""Every limit of time for a group of replicas, and what is said where one passes."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from aerotrain.contract.job import Job, ReplicaName
from aerotrain.contract.recovery import Formation
from aerotrain.contract.status import Observation, State

#: Replicas whose reasons for waiting are named.
_NAMED = 3


@dataclass(frozen=True)
class Deadline:
    """A time of ``time.time()``, the sentence for when it passes, and who has not started."""

    at: float
    message: str
    waiting: Sequence[ReplicaName] = ()


def nearest_deadline(
    job: Job,
    seen: Mapping[ReplicaName, Observation],
    created: float,
    started: Mapping[ReplicaName, float],
    until: float | None,
) -> Deadline:
    """The deadline that passes first, of a group that was created at ``created``.

    ``started`` is when each replica was last to start, ``until`` the end of the task's own
    timeout. All are times of ``time.time()``.
    """
    return min(_deadlines(job, seen, created, started, until), key=lambda each: each.at)


def _deadlines(
    job: Job,
    seen: Mapping[ReplicaName, Observation],
    created: float,
    started: Mapping[ReplicaName, float],
    until: float | None,
) -> Iterator[Deadline]:
    yield Deadline(
        created + job.deadlines.run,
        f"{job.name} ran for longer than its deadline of {job.deadlines.run:.0f} s; "
        "allow it more, or give it more replicas",
    )
    if until is not None:
        yield Deadline(until, f"{job.name} ran for longer than its task's execution_timeout")
    waiting = [name for name, each in seen.items() if each.state is State.PENDING]
    if waiting:
        reasons = "; ".join(f"{name} {seen[name].reason}" for name in waiting[:_NAMED])
        yield Deadline(
            max(started[name] for name in waiting) + job.deadlines.start,
            f"{len(waiting)} of {len(seen)} replicas of {job.name} did not start "
            f"within {job.deadlines.start:.0f} s, so all were given back: {reasons}",
            waiting,
        )


def patience(job: Job, *, trains: bool) -> float:
    """Seconds that a replica may go without a heartbeat.

    The members of a gang that has not trained yet have as long as they have to start: TensorFlow
    lets no Python run while they wait for each other.
    """
    if Formation.of(job) is Formation.GANG and not trains:
        return max(job.deadlines.start, job.deadlines.patience)
    return job.deadlines.patience


def unresponsive_reason(job: Job, seconds: float) -> str:
    """What is said of a replica that has had no heartbeat for so long."""
    return f"gave no sign of life for {seconds:.0f} s, and was ended"
