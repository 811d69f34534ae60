"""The restart policy: whether a replica is restarted after a failure, with which others, and when.

Airflow's retries are the outer layer. What is final here would fail the same way there; if only the
restart budget is used up, another attempt may help. All time limits of a group are here, too, and
what the event log says of one replica: which of its failures count, and which events are kept.
"""

import signal
from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum

from aerotrain.contract.errors import ExitCode, counted
from aerotrain.contract.event_log import Event, EventType
from aerotrain.contract.job import Job, Restarts
from aerotrain.contract.replicas import ReplicaName, Role
from aerotrain.contract.status import Failure, Observation, State

#: The observation of every replica of a job.
Observations = Mapping[ReplicaName, Observation]

#: The failures of each replica that are kept individually: more than any decision needs.
_KEPT = 8

#: The characters kept of the reason of an older event, and those by which reasons are compared.
_REASON = 200

#: Those that are kept of the reason of each failure that is not compared, of many replicas.
_CUT = 40

#: The failure kinds for which the cluster, and not the replica, is the cause.
BY_CLUSTER = frozenset({Failure.START, Failure.NODE, Failure.PREEMPTED})


@dataclass(frozen=True)
class History:
    """The events of one replica, in the order of time."""

    events: Sequence[Event]

    @classmethod
    def of_each(
        cls, names: Iterable[ReplicaName], events: Iterable[Event]
    ) -> "dict[ReplicaName, History]":
        """The history of each of these replicas, in one pass over the events of their group."""
        by_replica: dict[str, list[Event]] = defaultdict(list)
        for each in events:
            by_replica[each.replica].append(each)
        return {name: cls(by_replica.get(str(name), ())) for name in names}

    @property
    def restarts(self) -> int:
        """The replica's restart count, including a recorded restart that was not carried out."""
        return self.last_restart.restarts if self.last_restart else 0

    @property
    def last_restart(self) -> Event | None:
        return next(reversed(self._all(EventType.RESTART)), None)

    @property
    def failure(self) -> Event | None:
        """The failure recorded since its last restart."""
        restarts = self.restarts
        found = (each for each in self._all(EventType.DETECT) if each.restarts == restarts)
        return next(found, None)

    @property
    def earlier(self) -> list[Event]:
        """Its failures before its last restart."""
        restarts = self.restarts
        return [each for each in self._all(EventType.DETECT) if each.restarts < restarts]

    @property
    def failures(self) -> list[Event]:
        """All of its failures."""
        return self._all(EventType.DETECT)

    @property
    def slow_since(self) -> float:
        """When it was last named as slow."""
        return max([each.at for each in self._all(EventType.STRAGGLER)], default=float("-inf"))

    def _all(self, what: EventType) -> list[Event]:
        return [each for each in self.events if each.event is what]


#: The history of each replica.
Histories = Mapping[ReplicaName, History]


def restart_counts(events: Iterable[Event]) -> dict[str, int]:
    """The restart count of each replica that has a recorded restart."""
    return {each.replica: each.restarts for each in events if each.event is EventType.RESTART}


def size_of(events: Iterable[Event]) -> int:
    """The size of the events in bytes, one per line."""
    return sum(len(each.to_json().encode()) + 1 for each in events)


def compacted(events: Sequence[Event], limit: int) -> Sequence[Event]:
    """The events in at most about ``limit`` bytes, such that the controller decides the same.

    If they are larger, each replica keeps its last restart and its last failures; its older
    failures are summed up by kind. If that is not enough, because the replicas are many, so are all
    that are over and not compared with later ones, and reasons are cut.
    """
    if size_of(events) > limit:
        events = _compacted(events)
    if size_of(events) > limit:
        events = [_cut(each) for each in _compacted(events, least=0)]
    return events


def _compacted(events: Sequence[Event], least: int = _KEPT) -> list[Event]:
    """The events with the last failures of each replica; ``least`` of those not compared."""
    kept: list[Event] = []
    by_replica: dict[str, list[Event]] = defaultdict(list)
    for each in events:
        by_replica[each.replica].append(each)
    for own in by_replica.values():
        failures = [each for each in own if each.event is EventType.DETECT]
        restarts = [each for each in own if each.event is EventType.RESTART]
        resizes = [each for each in own if each.event is EventType.RESIZE]
        apart = (EventType.DETECT, EventType.RESTART, EventType.RESIZE)
        others = [each for each in own if each.event not in apart]
        count = restarts[-1].restarts if restarts else 0
        is_over = all(each.restarts < count for each in failures[-1:])
        most = _KEPT if any(map(_is_compared, failures)) else max(least, not is_over)
        first = max(0, len(failures) - most)
        kept += _summed(failures[:first])
        kept += [replace(each, because=each.because[:_REASON]) for each in failures[first:-1]]
        kept += failures[first:][-1:] + restarts[-1:] + resizes[-_KEPT:]
        kept += others[:1] + others[1:][-_KEPT:]
    return sorted(kept, key=lambda each: each.at)


def _is_compared(failure: Event) -> bool:
    return RULES[Failure(failure.kind)].may_be_a_bug


def _cut(event: Event) -> Event:
    if event.event is EventType.RESTART:
        return replace(event, because="")
    is_failure = event.event is EventType.DETECT and not _is_compared(event)
    return replace(event, because=event.because[:_CUT]) if is_failure else event


def _summed(failures: Iterable[Event]) -> list[Event]:
    """One event per failure kind, which counts for all of them."""
    last: dict[str, Event] = {}
    for each in failures:
        before = last[each.kind].times if each.kind in last else 0
        last[each.kind] = replace(each, because="", times=before + each.times)
    return list(last.values())


def is_alike(event: Event, reason: str, step: int) -> bool:
    """Whether an earlier failure was at the same step, with a reason that begins alike."""
    return event.step == step and event.because[:_REASON] == reason[:_REASON]


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
    Failure.QUEUE: RestartRule(Remedy.RESTART, "preemptions"),  # not judged: its group is evicted
}

#: The failure kinds that a replica has when one of its peers is gone.
MISSES_A_PEER = (Failure.HANG, Failure.TEMPORARY)

#: Exit codes of signals from outside: SIGTERM, or SIGKILL if it did not respond to that. They do
#: not point to the program as the cause.
FROM_OUTSIDE = (ExitCode.TERMINATED, 128 + signal.SIGKILL)


@dataclass(frozen=True)
class RestartVerdict:
    """What happens after a failure; ``so`` says it after the sentence of the failure."""

    remedy: Remedy
    so: str

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
                Remedy.NONE, f": {ALIKE} times at step {step}, so it would fail again"
            )
    budget = getattr(budgets, rule.budget)
    spent = sum(each.times for each in earlier if RULES[Failure(each.kind)].budget == rule.budget)
    if spent >= budget:
        used = f"it was restarted {counted(spent, 'time')}, and restarts.{rule.budget} is {budget}"
        return RestartVerdict(Remedy.RETRY, f"; {used}")
    return RestartVerdict(
        rule.remedy, f"; it {rule.remedy} ({spent + 1} of {budget} {rule.budget})"
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


def is_gang(job: Job) -> bool:
    """Whether chief and workers run the same steps together, so that none goes on without all."""
    return job.rules.peers and job.count(Role.WORKER) > 0


def replicas_to_restart(job: Job, failed: Collection[ReplicaName]) -> frozenset[ReplicaName]:
    """The replicas to restart if these failed; those that still run are ended first.

    All others continue. docs/recovery.md has the table, with the reasons.
    """
    together: set[Role] = set()
    for name in failed:
        match name.role:
            case Role.PS:
                together |= {Role.PS, Role.CHIEF}
            case Role.CHIEF | Role.WORKER if is_gang(job):
                together |= {Role.CHIEF, Role.WORKER}
    return frozenset(failed) | {name for name in job.names() if name.role in together}


#: What to do about a job that takes too long.
MORE_TIME = "increase deadlines.run, or use more replicas"

#: The number of replicas that a message names, of more.
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


def listed(parts: Sequence[str], separator: str = "; ") -> str:
    """The parts of a message, one for each replica; of many the first, and how many more."""
    if len(parts) <= _NAMED + 1:
        return separator.join(parts)
    return separator.join([*parts[:_NAMED], f"and {len(parts) - _NAMED} more"])


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
        reasons = listed([f"{name} {seen[name].reason}" for name in waiting])
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
    if is_gang(job) and not trains:
        return max(job.deadlines.start, job.deadlines.progress_timeout)
    return job.deadlines.progress_timeout
