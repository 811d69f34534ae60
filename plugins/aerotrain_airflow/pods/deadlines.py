"""By when something has to be true of a set of pods, and what is said where it is not.

All is counted from what Kubernetes has written into the set's objects, so that it does not
matter who looks, or since when.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from aerotrain.contract.job import Job, ReplicaName
from aerotrain_airflow.pods.observed import ReplicaStatus

#: Replicas whose reasons for waiting are told.
_TOLD = 3

#: Seconds within which pods are created that are to start together.
_ONE_START = 60.0


@dataclass(frozen=True)
class Deadline:
    """A time of ``time.time()``, what is said where it passes, and who has kept it waiting.

    Where somebody has, no older look at the pods than of that time tells whether it was kept.
    """

    at: float
    message: str
    waiting: Sequence[ReplicaName] = ()


def deadlines(
    job: Job, replicas: Mapping[ReplicaName, ReplicaStatus], born: float, until: float | None
) -> list[Deadline]:
    """The deadlines of a set that was made at ``born``, as far as its replicas are known.

    ``until`` is the caller's own. All are times of ``time.time()``.
    """
    return list(_deadlines(job, replicas, born, until))


def missed(given: Iterable[Deadline], now: float, looked: float | None) -> Deadline | None:
    """The first of them that was certainly not kept; ``looked`` is when all pods were seen."""
    for each in sorted(given, key=lambda each: each.at):
        if each.at <= now and (not each.waiting or (looked is not None and looked >= each.at)):
            return each
    return None


def to_be_looked_at(given: Iterable[Deadline], now: float) -> bool:
    """Whether one has passed, of which only another look at the pods tells if it was kept.

    For who knows that none was certainly missed.
    """
    return any(each.at <= now for each in given)


def next_of(given: Iterable[Deadline], now: float) -> float:
    """When the next one passes; infinite where none is to come."""
    return min((each.at for each in given if each.at > now), default=float("inf"))


def _deadlines(
    job: Job, replicas: Mapping[ReplicaName, ReplicaStatus], born: float, until: float | None
) -> Iterator[Deadline]:
    yield Deadline(
        born + job.deadlines.run,
        f"{job.name} ran for longer than its deadline of {job.deadlines.run:.0f} s; "
        "allow it more, or give it more replicas",
    )
    if until is not None:
        yield Deadline(until, f"{job.name} ran for longer than its task's execution_timeout")
    created = {name: each.created for name, each in replicas.items() if each.waits}
    if created:
        first = min(created.values())
        waiting = [name for name in sorted(created) if created[name] <= first + _ONE_START]
        reasons = "; ".join(f"{name} {replicas[name].seen.reason}" for name in waiting[:_TOLD])
        yield Deadline(
            first + job.deadlines.start,
            f"{len(waiting)} of {len(replicas)} replicas of {job.name} did not start "
            f"within {job.deadlines.start:.0f} s, so all were given back: {reasons}",
            waiting,
        )
