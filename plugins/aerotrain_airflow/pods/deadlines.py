"""By when something has to be true of a set of pods, and what is said where it is not."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from aerotrain.contract.job import Job, ReplicaName
from aerotrain.contract.status import Observation, State

#: Replicas whose reasons for waiting are told.
_TOLD = 3


@dataclass(frozen=True)
class Deadline:
    """A time of ``time.time()``, what is told where it passes, and who has kept it waiting."""

    at: float
    message: str
    waiting: Sequence[ReplicaName] = ()


def nearest_deadline(
    job: Job,
    seen: Mapping[ReplicaName, Observation],
    born: float,
    starts: float,
    until: float | None,
) -> Deadline:
    """The deadline that passes first, of a set made at ``born`` and last started at ``starts``.

    ``until`` is the caller's own. All are times of ``time.time()``.
    """
    return min(_deadlines(job, seen, born, starts, until), key=lambda each: each.at)


def _deadlines(
    job: Job,
    seen: Mapping[ReplicaName, Observation],
    born: float,
    starts: float,
    until: float | None,
) -> Iterator[Deadline]:
    yield Deadline(
        born + job.deadlines.run,
        f"{job.name} ran for longer than its deadline of {job.deadlines.run:.0f} s; "
        "allow it more, or give it more replicas",
    )
    if until is not None:
        yield Deadline(until, f"{job.name} ran for longer than its task's execution_timeout")
    waiting = [name for name, each in seen.items() if each.state is State.PENDING]
    if waiting:
        reasons = "; ".join(f"{name} {seen[name].reason}" for name in waiting[:_TOLD])
        yield Deadline(
            starts + job.deadlines.start,
            f"{len(waiting)} of {len(seen)} replicas of {job.name} did not start "
            f"within {job.deadlines.start:.0f} s, so all were given back: {reasons}",
            waiting,
        )
