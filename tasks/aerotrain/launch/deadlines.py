"""All time limits of a replica group, and the messages for when one has passed."""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from aerotrain.contract.job import Job
from aerotrain.contract.replicas import ReplicaName
from aerotrain.contract.status import State
from aerotrain.launch.decision import Observations
from aerotrain.launch.restart_policy import Topology

#: What to do about a job that takes too long.
MORE_TIME = "increase deadlines.run, or use more replicas"

#: The number of replicas whose reasons for waiting are in the message.
_NAMED = 3

#: Seconds within which replicas must begin to wait to count as started together.
_ONE_START = 60.0


@dataclass(frozen=True)
class Deadline:
    """A time of ``time.time()``, the message for when it passes, and the replicas not yet started.

    If there are such replicas, only an observation made after that time tells whether it was met.
    """

    at: float
    message: str
    waiting: Sequence[ReplicaName] = ()


def deadlines(job: Job, seen: Observations, created: float, until: float | None) -> list[Deadline]:
    """The deadlines of a group that was created at ``created``, earliest first.

    ``until`` is the end of the task's own timeout. All are times of ``time.time()``.
    """
    return sorted(_deadlines(job, seen, created, until), key=lambda each: each.at)


def missed(limits: Iterable[Deadline], now: float, looked: float) -> Deadline | None:
    """The first deadline that was certainly missed; ``looked`` is the time of the observation."""
    passed = (each for each in limits if each.at <= now)
    return next((each for each in passed if not each.waiting or looked >= each.at), None)


def _deadlines(
    job: Job, seen: Observations, created: float, until: float | None
) -> Iterator[Deadline]:
    yield Deadline(
        created + job.deadlines.run,
        f"{job.name} ran for longer than its deadline of {job.deadlines.run:.0f} s; {MORE_TIME}",
    )
    if until is not None:
        yield Deadline(until, f"{job.name} ran for longer than its task's execution_timeout")
    since = {
        name: each.waits_since
        for name, each in seen.items()
        if each.state is State.PENDING and each.waits_since is not None
    }
    if since:
        first = min(since.values())
        waiting = [name for name in sorted(since) if since[name] <= first + _ONE_START]
        reasons = "; ".join(f"{name} {seen[name].reason}" for name in waiting[:_NAMED])
        yield Deadline(
            first + job.deadlines.start,
            f"{len(waiting)} of {len(seen)} replicas of {job.name} did not start "
            f"within {job.deadlines.start:.0f} s, so all were ended: {reasons}",
            waiting,
        )


def heartbeat_timeout(job: Job, *, trains: bool) -> float:
    """The seconds that a replica may go without a heartbeat; ``trains`` once it has trained.

    For members of a gang that has not trained yet, it is at least the start deadline: TensorFlow
    blocks Python while they wait for each other.
    """
    if Topology.of(job) is Topology.GANG and not trains:
        return max(job.deadlines.start, job.deadlines.progress_timeout)
    return job.deadlines.progress_timeout
