"""Decides what happens to a replica group: its end, the restart of some replicas, or a wait.

The only state is the group's event log. So any process that follows the group next continues with
the same restart budgets, and completes a restart that was recorded but not carried out.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Self

from aerotrain.contract.errors import FinalError, TemporaryError
from aerotrain.contract.event_log import Event, EventType
from aerotrain.contract.job import Job
from aerotrain.contract.replicas import ReplicaName, Role
from aerotrain.contract.status import Failure, Observation, State, job_state
from aerotrain.launch.restart_policy import (
    MISSES_A_PEER,
    Deadline,
    History,
    Observations,
    Remedy,
    RestartVerdict,
    deadlines,
    heartbeat_timeout,
    judge,
    kind_of,
    listed,
    memory_factor,
    missed,
    not_before,
    replicas_to_restart,
)

Histories = Mapping[ReplicaName, History]


@dataclass(frozen=True)
class GroupObservation:
    """The observation of every replica; ``at`` is when it began, by ``time.time()``."""

    seen: Observations
    at: float


@dataclass(frozen=True)
class LastStep:
    """The global step of the last progress line, and its time by ``time.time()``."""

    step: int
    at: float


@dataclass(frozen=True, kw_only=True)
class Ended:
    """How a job ended: its state, the replicas that caused it, and the message for the user."""

    state: State
    reason: str = ""
    causes: tuple[ReplicaName, ...] = ()

    @classmethod
    def of(cls, seen: Observations) -> Self:
        """The end of a job whose replicas are in these states.

        FAILED takes precedence over LOST: the peers of a replica that failed are LOST because of
        it.
        """
        state = job_state(seen)
        causes = tuple(name for name, each in seen.items() if each.state is state)
        reason = listed([seen[name].sentence(name) for name in causes])
        return cls(state=state, reason=reason, causes=causes)

    @classmethod
    def recorded_in(cls, events: Sequence[Event]) -> Self | None:
        """The end that is recorded in the event log of a group, without its causes."""
        found = (each for each in events if each.event is EventType.END)
        end = next(found, None)
        return cls(state=State(end.kind), reason=end.because) if end else None

    def to_dict(self) -> dict[str, str]:
        """The state and the reason, as plain values for an Airflow event."""
        return {"state": self.state.value, "reason": self.reason}

    @classmethod
    def from_dict(cls, data: Mapping[str, str]) -> Self:
        """Read what ``to_dict`` wrote."""
        return cls(state=State(data["state"]), reason=data["reason"])

    def raise_unless_succeeded(self) -> None:
        """Raise the exception that says whether another attempt may help.

        Raises:
            FinalError: a replica failed, and would fail again.
            TemporaryError: a replica failed for another reason, or the job missed a deadline.
        """
        if self.state is not State.SUCCEEDED:
            raise (FinalError if self.state is State.FAILED else TemporaryError)(self.reason)


@dataclass(frozen=True, kw_only=True)
class Restart:
    """Replicas to restart now; those that still run are ended first.

    ``counts`` are their restart counts afterwards. ``avoid`` is a node on which a replica should
    not be placed again, ``memory`` the factor for its memory. Those in ``force`` are replaced at
    once, without waiting for the end of the old process or pod.
    """

    counts: Mapping[ReplicaName, int]
    because: str
    avoid: Mapping[ReplicaName, str] = field(default_factory=dict)
    memory: Mapping[ReplicaName, float] = field(default_factory=dict)
    force: frozenset[ReplicaName] = frozenset()

    @classmethod
    def of(cls, events: Mapping[ReplicaName, Event]) -> Self:
        """The restart that these events record."""
        return cls(
            counts={name: each.restarts for name, each in events.items()},
            because=next(iter(events.values())).because,
            avoid={name: each.node for name, each in events.items() if each.node},
            memory={name: each.memory for name, each in events.items() if each.memory != 1.0},
            force=frozenset(name for name, each in events.items() if each.force),
        )

    def __str__(self) -> str:
        """One sentence for the task's log."""
        return f"{self.because}; restarting {listed([*map(str, sorted(self.counts))], ', ')}"


@dataclass(frozen=True)
class Wait:
    """Nothing to do before ``until``, a time of ``time.time()``, unless something changes.

    ``look_again`` means that the observation is too old to tell whether a deadline was met.
    """

    until: float
    look_again: bool = False


@dataclass(frozen=True, kw_only=True)
class Decision:
    """What to do, and the events to record before it is done."""

    action: Ended | Restart | Wait
    events: tuple[Event, ...] = ()

    @classmethod
    def end(cls, ended: Ended, now: float, events: tuple[Event, ...] = ()) -> Self:
        """The end of the job, recorded after ``events``."""
        end = Event(event=EventType.END, at=now, kind=ended.state.value, because=ended.reason)
        return cls(action=ended, events=(*events, end))


@dataclass(frozen=True, kw_only=True)
class Controller:
    """The controller of the group of ``job`` that was created at ``created``.

    ``until`` is the end of the task's own timeout. Both are times of ``time.time()``.
    """

    job: Job
    created: float
    until: float | None = None

    def decide(
        self,
        events: Sequence[Event],
        look: GroupObservation,
        now: float,
        last_step: LastStep | None = None,
    ) -> Decision:
        """What to do about a group with these ``events`` and this observation.

        The events of the decision must be recorded before it is carried out. If another process
        has added events meanwhile, decide again.
        """
        recorded = Ended.recorded_in(events)
        if recorded is not None:  # its replicas may be gone by now
            return Decision(action=recorded)
        history = self._history(events)
        late = _not_carried_out(look.seen, history)
        seen = self._combined(look.seen, history, late, last_step)
        if job_state(seen) in (State.SUCCEEDED, State.FAILED):
            return Decision.end(Ended.of(seen), now)
        failed = _Failures(job=self.job, seen=seen, history=history, now=now, last_step=last_step)
        ended = failed.end_of_job()
        if ended is not None:
            return Decision.end(ended, now, failed.new)
        limits = deadlines(self.job, seen, self.created, self.until)
        deadline = missed(limits, now, look.at)
        if deadline is not None:
            ended = Ended(state=State.LOST, reason=deadline.message)
            return Decision.end(ended, now, failed.new + failed.not_started(deadline))
        if late:
            return Decision(action=Restart.of(late), events=failed.new)
        wait = self._wait(limits, seen, now, last_step)
        if not failed.events:
            return Decision(action=wait)
        due = failed.restart_due()
        if due > now:
            return Decision(action=replace(wait, until=min(due, wait.until)), events=failed.new)
        restarts = failed.restarts()
        return Decision(action=Restart.of(restarts), events=(*failed.new, *restarts.values()))

    def can_adopt(self, events: Sequence[Event], seen: Observations, now: float) -> bool:
        """Whether a group of an earlier attempt can still succeed."""
        action = self.decide(events, GroupObservation(seen, now), now).action
        if isinstance(action, Ended):
            return action.state is State.SUCCEEDED
        is_alive = any(not each.state.ended for each in seen.values())
        return is_alive or bool(_not_carried_out(seen, self._history(events)))

    def _history(self, events: Sequence[Event]) -> Histories:
        return History.of_each(self.job.names(), events)

    def _combined(
        self,
        seen: Observations,
        history: Histories,
        late: Mapping[ReplicaName, Event],
        last_step: LastStep | None,
    ) -> Observations:
        """The observations, combined with what the event log says of each replica.

        A replica whose restart is still to be carried out has not started. A recorded failure stays
        valid, even if the replica seems to run: it was frozen, and resumed before its end.
        """
        found: dict[ReplicaName, Observation] = {}
        for name, each in seen.items():
            failure, allowed = history[name].failure, self._allowed(history[name], last_step)
            if name in late:
                found[name] = Observation(
                    state=State.PENDING, reason="waits to be restarted", waits_since=late[name].at
                )
            elif each.state in (State.SUCCEEDED, State.FAILED):
                found[name] = each
            elif failure is not None:
                found[name] = _as_recorded(each, failure)
            elif each.state is State.RUNNING and (each.heartbeat_age or 0.0) > allowed:
                reason = f"had no heartbeat for {allowed:.0f} s, and was ended"
                found[name] = replace(each, state=State.LOST, reason=reason, failure=Failure.HANG)
            else:
                found[name] = each
        return found | {name: _left_early(found[name]) for name in self._leavers(found)}

    def _leavers(self, seen: Observations) -> list[ReplicaName]:
        """Replicas that exited with 0 although the chief still needed them.

        A replica that serves has no end of its own. A peer has: it left early if the chief failed
        because it missed a peer.
        """
        chief = seen[ReplicaName(Role.CHIEF, 0)]
        is_missed = chief.state is State.LOST and kind_of(chief) in MISSES_A_PEER
        return [
            name
            for name, each in seen.items()
            if each.state is State.SUCCEEDED
            and name.role not in (Role.CHIEF, Role.EVALUATOR)
            and (is_missed or not (name.role is Role.WORKER and self.job.rules.peers))
        ]

    def _allowed(self, history: History, last_step: LastStep | None) -> float:
        """The heartbeat timeout of this replica: longer until it has trained."""
        since = history.last_restart.at if history.last_restart else self.created
        return heartbeat_timeout(self.job, trains=last_step is not None and last_step.at > since)

    def _wait(
        self, limits: Sequence[Deadline], seen: Observations, now: float, last_step: LastStep | None
    ) -> Wait:
        """Wait until a deadline passes, or until a replica could first count as unresponsive."""
        ages = [each.heartbeat_age for each in seen.values() if each.heartbeat_age is not None]
        allowed = heartbeat_timeout(self.job, trains=last_step is not None)
        no_heartbeat = now + max(0.0, allowed - max(ages)) if ages else float("inf")
        until = min((each.at for each in limits if each.at > now), default=float("inf"))
        return Wait(min(until, no_heartbeat), look_again=any(each.at <= now for each in limits))


@dataclass(frozen=True, kw_only=True)
class _Failures:
    """The failures among the replicas of ``job`` as ``seen`` at ``now``, after ``last_step``."""

    job: Job
    seen: Observations
    history: Histories
    now: float
    last_step: LastStep | None

    @cached_property
    def events(self) -> Mapping[ReplicaName, Event]:
        """The failures that have a cause of their own, each as the event that records it.

        A replica that only reports a missing peer failed because of that peer, and is left out.
        """
        lost = {name: each for name, each in self.seen.items() if each.state is State.LOST}
        causes = {name for name, each in lost.items() if kind_of(each) is not Failure.TEMPORARY}
        return {
            name: self.history[name].failure or self._detected(name, kind_of(each))
            for name, each in lost.items()
            if not causes or name in causes
        }

    @property
    def new(self) -> tuple[Event, ...]:
        """Those of them that are not recorded yet."""
        events = self.events.items()
        return tuple(each for name, each in events if self.history[name].failure is None)

    @cached_property
    def verdicts(self) -> Mapping[ReplicaName, RestartVerdict]:
        """The verdict on each failure."""
        return {
            name: judge(self.seen[name], each.step, self.history[name].earlier, self.job.restarts)
            for name, each in self.events.items()
        }

    def end_of_job(self) -> Ended | None:
        """The end of the job, if a replica is not restarted any more."""
        found = {name: each for name, each in self.verdicts.items() if not each.is_restarted}
        if not found:
            return None
        is_final = any(each.remedy is Remedy.NONE for each in found.values())
        return Ended(
            state=State.FAILED if is_final else State.LOST,
            reason=self._sentence(found),
            causes=tuple(found),
        )

    def not_started(self, deadline: Deadline) -> tuple[Event, ...]:
        """The replicas not started by this deadline, as events: the next attempt may omit them."""
        return tuple(self._detected(name, Failure.START) for name in deadline.waiting)

    @cached_property
    def unresponsive(self) -> frozenset[ReplicaName]:
        """Replicas that seem to run, but that a peer reported as unresponsive when it ended."""
        hung = [self.seen[name] for name in self.events if kind_of(self.seen[name]) is Failure.HANG]
        reported = frozenset[str]().union(*(each.unresponsive for each in hung))
        return frozenset(
            name
            for name, each in self.seen.items()
            if not each.state.ended and str(name) in reported
        )

    @cached_property
    def restarted(self) -> frozenset[ReplicaName]:
        """The replicas that failed, and those that are restarted with them."""
        lost = {name for name, each in self.seen.items() if each.state is State.LOST}
        return replicas_to_restart(self.job, lost | self.unresponsive)

    def restart_due(self) -> float:
        """The time of the restart; it does not wait for unresponsive replicas to end."""
        ends = self.restarted - self.unresponsive
        failures = {name: (each, self.history[name].earlier) for name, each in self.events.items()}
        return not_before(failures, all_ended=all(self.seen[name].state.ended for name in ends))

    def restarts(self) -> dict[ReplicaName, Event]:
        """Their restarts, as the events that record them."""
        because = self._sentence(self.verdicts)
        return {name: self._restart(name, because) for name in sorted(self.restarted)}

    def _sentence(self, verdicts: Mapping[ReplicaName, RestartVerdict]) -> str:
        return listed([self.seen[name].sentence(name) + v.so for name, v in verdicts.items()])

    def _restart(self, name: ReplicaName, because: str) -> Event:
        verdict, failure = self.verdicts.get(name), self.events.get(name)
        is_moved = name in self.unresponsive or (verdict and verdict.remedy is Remedy.OTHER_NODE)
        return Event(
            event=EventType.RESTART,
            at=self.now,
            step=self.last_step.step if self.last_step else None,
            replica=str(name),
            restarts=self.history[name].restarts + 1,
            because=because,
            node=self.seen[name].node if is_moved else "",
            memory=memory_factor([*self.history[name].earlier, *([failure] if failure else [])]),
            force=name in self.unresponsive or kind_of(self.seen[name]) is Failure.NODE,
        )

    def _detected(self, name: ReplicaName, kind: Failure) -> Event:
        seen, restart, last = self.seen[name], self.history[name].last_restart, self.last_step
        # A step from before the last restart says nothing of this failure: its lines may be lost.
        step = last.step if last and (restart is None or last.at > restart.at) else None
        return Event(
            event=EventType.DETECT,
            at=self.now,
            step=step,
            replica=str(name),
            restarts=self.history[name].restarts,
            kind=kind.value,
            because=seen.reason,
            node=seen.node,
            unresponsive=tuple(sorted(seen.unresponsive)),
        )


def _not_carried_out(seen: Observations, history: Histories) -> dict[ReplicaName, Event]:
    """The recorded restarts that were not carried out."""
    found = {}
    for name, each in seen.items():
        restart = history[name].last_restart
        if restart and (each.restarts is None or each.restarts < restart.restarts):
            found[name] = restart
    return found


def _left_early(seen: Observation) -> Observation:
    reason = "exited with 0 while the chief still needed it, as by os._exit() in code that it runs"
    return replace(seen, state=State.LOST, reason=reason, failure=Failure.CRASH)


def _as_recorded(seen: Observation, failure: Event) -> Observation:
    """A replica whose failure was recorded, whatever was observed of it since."""
    return replace(
        seen,
        state=State.LOST,
        reason=failure.because,
        message=seen.message if seen.reason == failure.because else "",
        failure=Failure(failure.kind),
        node=failure.node or seen.node,
        unresponsive=frozenset(failure.unresponsive),
    )
