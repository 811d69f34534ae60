"""The restart policy: whether a replica is restarted after a failure, with which others, and when.

Airflow's retries are the outer layer. What is final here would fail the same way there; if only the
restart budget is used up, another attempt may help. All time limits of a group are here, too.
"""

import signal
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum

from aerotrain.contract.errors import ExitCode, counted
from aerotrain.contract.event_log import Event
from aerotrain.contract.job import Job, Restarts
from aerotrain.contract.replicas import ReplicaName, Role
from aerotrain.contract.status import Failure, Observation, State
from aerotrain.launch.decision import Observations
from aerotrain.launch.history import is_alike

#: The number of failures in a row with the same message at the same step after which the program
#: itself is considered the cause, so that a restart would not help.
ALIKE = 3


class Remedy(StrEnum):
    """What happens after a failure, as a part of a sentence about the replica."""

    RESTART = "is restarted"
    OTHER_NODE = "is restarted, elsewhere if possible"
    MORE_MEMORY = "is restarted with more memory"
    RETRY = "is left to the task's retries"
    NONE = "would fail again"


@dataclass(frozen=True)
class RestartRule:
    """How a replica is restarted after a failure of one kind, and the budget that it uses."""

    remedy: Remedy
    budget: str
    may_be_a_bug: bool = False


# One row per failure kind.
RULES: Mapping[Failure, RestartRule] = {
    Failure.CRASH: RestartRule(Remedy.RESTART, "crashes", may_be_a_bug=True),
    Failure.TEMPORARY: RestartRule(Remedy.RESTART, "crashes"),
    Failure.HANG: RestartRule(Remedy.OTHER_NODE, "hangs", may_be_a_bug=True),
    Failure.MEMORY: RestartRule(Remedy.MORE_MEMORY, "memory"),
    Failure.PREEMPTED: RestartRule(Remedy.OTHER_NODE, "preemptions"),
    Failure.NODE: RestartRule(Remedy.OTHER_NODE, "preemptions"),
    Failure.START: RestartRule(Remedy.OTHER_NODE, "starts"),
}

#: The failure kinds that a replica has when one of its peers is gone.
MISSES_A_PEER = (Failure.HANG, Failure.TEMPORARY)

#: Exit codes of signals from outside: SIGTERM, or SIGKILL if it did not respond to that. They do
#: not point to the program as the cause.
FROM_OUTSIDE = (ExitCode.TERMINATED, 128 + signal.SIGKILL)


@dataclass(frozen=True)
class RestartVerdict:
    """What happens after a failure, and why; ``why`` follows the replica's name in a sentence."""

    remedy: Remedy
    why: str

    @property
    def is_restarted(self) -> bool:
        return self.remedy not in (Remedy.RETRY, Remedy.NONE)


def kind_of(seen: Observation) -> Failure:
    """The failure kind; a failure without an explanation is a crash."""
    return seen.failure or Failure.CRASH


def judge(
    seen: Observation, step: int | None, earlier: Sequence[Event], budgets: Restarts
) -> RestartVerdict:
    """The verdict on a failure at ``step``, after the ``earlier`` ones of the same replica.

    ``step`` is None if it is unknown: the log may not have been readable.
    """
    rule = RULES[kind_of(seen)]
    if rule.may_be_a_bug and seen.exit_code not in FROM_OUTSIDE and step is not None:
        alike = [each for each in earlier[1 - ALIKE :] if is_alike(each, seen.reason, step)]
        if len(alike) == ALIKE - 1:
            return RestartVerdict(
                Remedy.NONE, f"{seen.reason}: {ALIKE} times at step {step}, so it would fail again"
            )
    budget = getattr(budgets, rule.budget)
    spent = sum(each.times for each in earlier if RULES[Failure(each.kind)].budget == rule.budget)
    if spent >= budget:
        used = f"it was restarted {counted(spent, 'time')}, and restarts.{rule.budget} is {budget}"
        return RestartVerdict(Remedy.RETRY, f"{seen.reason}; {used}")
    return RestartVerdict(
        rule.remedy, f"{seen.reason}; it {rule.remedy} ({spent + 1} of {budget} {rule.budget})"
    )


#: Seconds for the other replicas that are restarted with a failed one to end by themselves: they
#: notice the failure within 2 s, and may still be uploading a checkpoint.
SETTLE = 3.0

#: The same after a preemption: they first save a checkpoint, within a grace period of 8 s.
SETTLE_PREEMPTED = 10.0

#: Seconds in which the cause of a failure without one of its own may still be observed.
CAUSE_SHOWS = 1.0

#: Seconds before the third restart of a replica in a row, and the maximum. The pause doubles each
#: time, and starts again once a replica has run for ``_LIVED`` seconds.
_PAUSE, _LONGEST_PAUSE = 1.0, 30.0
_LIVED = 600.0

#: The factor for a replica's memory each time that it ran out.
_MORE_MEMORY = 1.5


def not_before(
    failures: Mapping[ReplicaName, tuple[Event, Sequence[Event]]], *, all_ended: bool
) -> float:
    """The time of the restart after these failures, each with the replica's earlier ones.

    ``all_ended`` means that all replicas to be restarted have ended already.
    """
    events = [event for event, _ in failures.values()]
    first = min(event.at for event in events)
    times = [event.at + _pause(event, earlier) for event, earlier in failures.values()]
    kinds = {event.kind for event in events}
    if not all_ended:
        times.append(first + (SETTLE_PREEMPTED if Failure.PREEMPTED in kinds else SETTLE))
    if kinds == {Failure.TEMPORARY}:
        times.append(first + CAUSE_SHOWS)
    return max(times)


def _pause(failure: Event, earlier: Sequence[Event]) -> float:
    """No pause after the first two failures, then longer ones until it has run for ``_LIVED``."""
    in_a_row = 0
    later = failure.at
    for event in reversed(earlier):
        if later - event.at > _LIVED:
            break
        in_a_row, later = in_a_row + 1, event.at
    return min(_PAUSE * 2.0 ** (in_a_row - 2), _LONGEST_PAUSE) if in_a_row >= 2 else 0.0


def memory_factor(failures: Iterable[Event]) -> float:
    """The factor for the memory of a replica after these failures."""
    return _MORE_MEMORY ** sum(each.times for each in failures if each.kind == Failure.MEMORY)


class Topology(StrEnum):
    """How the replicas of a job depend on each other, in the words of the documentation."""

    SERVED = "`parameter_server`"
    GANG = "`multi_worker_mirrored`, `dtensor` over processes"
    ALONE = "any of one process"
    ANY = "any"

    @classmethod
    def of(cls, job: Job) -> "Topology":
        """The topology of a job, without its evaluator and its input."""
        if job.rules.ps:
            return cls.SERVED
        return cls.GANG if job.rules.peers and job.count(Role.WORKER) else cls.ALONE


@dataclass(frozen=True)
class Row:
    """If a replica of ``role`` fails, all those of the roles ``together`` restart with it."""

    topology: Topology
    role: Role
    together: tuple[Role, ...] = ()


#: The replicas that are restarted after a failure; docs/recovery.md has the same table. Those that
#: are not named continue.
MATRIX: tuple[Row, ...] = (
    Row(Topology.SERVED, Role.WORKER),
    Row(Topology.SERVED, Role.PS, (Role.PS, Role.CHIEF)),
    Row(Topology.SERVED, Role.CHIEF),
    Row(Topology.GANG, Role.CHIEF, (Role.CHIEF, Role.WORKER)),
    Row(Topology.GANG, Role.WORKER, (Role.CHIEF, Role.WORKER)),
    Row(Topology.ALONE, Role.CHIEF),
    Row(Topology.ANY, Role.EVALUATOR),
    Row(Topology.ANY, Role.INPUT),
    Row(Topology.ANY, Role.DISPATCHER, (Role.CHIEF, Role.WORKER, Role.INPUT)),
)


def replicas_to_restart(job: Job, failed: Collection[ReplicaName]) -> frozenset[ReplicaName]:
    """The replicas to restart if these failed; those that still run are ended first."""
    together = {role for name in failed for role in _row_of(job, name.role).together}
    return frozenset(failed) | {name for name in job.names() if name.role in together}


def _row_of(job: Job, role: Role) -> Row:
    topologies = (Topology.of(job), Topology.ANY)
    return next(row for row in MATRIX if row.role is role and row.topology in topologies)


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
