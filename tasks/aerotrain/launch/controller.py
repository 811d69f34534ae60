"""Decides what happens to a replica group: its end, the restart of some replicas, or a wait.

The only state is the group's event log. So any process that follows the group next continues with
the same restart budgets, and completes a restart that was recorded but not carried out.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

from aerotrain.contract.event_log import Event, EventType
from aerotrain.contract.job import Job
from aerotrain.contract.replicas import ReplicaName, Role
from aerotrain.contract.status import Failure, Observation, State, job_state
from aerotrain.launch.decision import (
    Decision,
    Ended,
    GroupObservation,
    LastStep,
    Restart,
    Wait,
)
from aerotrain.launch.resizing import Resizing
from aerotrain.launch.restart_policy import (
    BY_CLUSTER,
    MISSES_A_PEER,
    Deadline,
    Histories,
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
from aerotrain.launch.size import Size, WantedSize, suspended_seconds


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
        wanted: WantedSize | None = None,
        times: Mapping[str, float] | None = None,
    ) -> Decision:
        """What to do about a group with these ``events`` and this observation.

        ``wanted`` is the size that the user has set, None if it is not known yet. ``times`` are
        those of the own parts of a step, by replica.

        The events of the decision must be recorded before it is carried out. If another process
        has added events meanwhile, decide again.
        """
        recorded = Ended.recorded_in(events)
        if recorded is not None:  # its replicas may be gone by now
            return Decision(action=recorded)
        history, size = self._history(events), Size.of(self.job, events)
        asked = {name: look.seen[name] for name in size.names()}
        late = _not_carried_out(asked, history)
        seen = self._combined(asked, history, late, last_step) if asked else look.seen
        if job_state(seen) in (State.SUCCEEDED, State.FAILED):
            return Decision.end(Ended.of(seen), now)
        resizing = Resizing(
            size=size, seen=seen, all_seen=look.seen, history=history, now=now, last_step=last_step
        )
        asked_for = None if wanted is None else size.wanted(wanted)
        if size.suspended:
            return resizing.by_hand(asked_for) if asked_for else resizing.end()
        if (queued := resizing.by_queue()) is not None:
            return queued
        failed = _Failures(
            job=self.job, size=size, seen=seen, history=history, now=now, last_step=last_step
        )
        ended = failed.end_of_job()
        if ended is not None:
            return Decision.end(ended, now, failed.new)
        created = self.created + suspended_seconds(events, now)
        limits = deadlines(self.job, size.counts_start(seen), created, self.until)
        deadline = missed(limits, now, look.at)
        if deadline is not None:
            ended = Ended(state=State.LOST, reason=deadline.message)
            return Decision.end(ended, now, failed.new)
        if asked_for is not None:
            return resizing.by_hand(asked_for, failed.new)
        wait = self._wait(limits, seen, now, last_step)
        if failed.events:  # while others end, a worker that never had room would take theirs
            late = {name: each for name, each in late.items() if not size.rank(name)}
        else:
            change = resizing.by_room(failed.left_out)
            if change is None and not late:
                change = resizing.by_slowness(times or {})
            if change is not None:
                return change
        if late or size.to_end(look.seen):
            action = Restart.of(late, size.to_end(look.seen), "resized")
            return Decision(action=action, events=failed.new)
        if not failed.events:
            return Decision(action=replace(wait, until=min(wait.until, *resizing.dues())))
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
        if Size.of(self.job, events).suspended:
            return True
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
    size: Size
    seen: Observations
    history: Histories
    now: float
    last_step: LastStep | None

    @cached_property
    def left_out(self) -> frozenset[ReplicaName]:
        """Workers that the cluster took, or did not start, too often, if enough others remain."""
        found = [
            name
            for name, each in self.seen.items()
            if name.role is Role.WORKER
            and each.state is State.LOST
            and kind_of(each) in BY_CLUSTER
            and not judge(each, None, self.history[name].earlier, self.job.restarts).is_restarted
        ]
        remain = self.size.workers - len(found)
        is_elastic = len(self.job.sizes) > 1
        return frozenset(found if is_elastic and remain >= self.job.sizes[0] else ())

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
            if (not causes or name in causes) and name not in self.left_out
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

    @cached_property
    def unresponsive(self) -> frozenset[ReplicaName]:
        """Replicas that seem to run, but that a peer reported as unresponsive when it ended."""
        hung = [self.seen[name] for name in self.events if kind_of(self.seen[name]) is Failure.HANG]
        reported = frozenset[str]().union(*(each.unresponsive for each in hung))
        return frozenset(
            name
            for name, each in self.seen.items()
            if each.state is State.RUNNING and str(name) in reported
        )

    @cached_property
    def restarted(self) -> frozenset[ReplicaName]:
        """The replicas that failed, and those that are restarted with them."""
        lost = {name for name, each in self.seen.items() if each.state is State.LOST}
        lost = (lost | self.unresponsive) - self.left_out
        outside = self.size.without  # no other replica needs them, nor they any other
        together = replicas_to_restart(self.job, lost - outside)
        return (together - outside - self.left_out) & self.seen.keys() | (lost & outside)

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
