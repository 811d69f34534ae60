"""Decides what happens to a replica group: its end, the restart of some replicas, or a wait.

The only state is the group's event log. So any process that follows the group next continues with
the same restart budgets, and completes a restart that was recorded but not carried out.
"""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace

from aerotrain.contract.event_log import Event
from aerotrain.contract.job import Job, ReplicaName
from aerotrain.contract.status import Loss, Observation, State, job_state
from aerotrain_airflow.controller.deadlines import (
    Deadline,
    deadlines,
    missed,
    patience,
    unresponsive_reason,
)
from aerotrain_airflow.controller.decision import Decision, Restart, Wait
from aerotrain_airflow.controller.ended import Ended, job_ended
from aerotrain_airflow.controller.history import History
from aerotrain_airflow.controller.situation import (
    Histories,
    Seen,
    Situation,
    as_recorded,
    behind,
    being_restarted,
    restart_of,
)


@dataclass(frozen=True)
class Progress:
    """The last progress line: its global step, and its time by ``time.time()``."""

    step: int
    at: float


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
        seen: Seen,
        now: float,
        progress: Progress | None = None,
        looked: float | None = None,
    ) -> Decision:
        """What to do about a group with these ``events`` and these observations in ``seen``.

        ``seen`` has every replica of the job; ``looked`` is the time of the observation, if it is
        not ``now``. The events of the decision must be recorded before it is carried out. If
        another process has added events meanwhile, decide again.
        """
        history = self._history(events)
        late = behind(seen, history)
        seen = self._taken_together(seen, history, late, progress)
        if job_state(seen) in (State.SUCCEEDED, State.FAILED):
            return Decision(action=job_ended(seen))
        step = progress.step if progress else None
        now_seen = Situation(job=self.job, seen=seen, history=history, now=now, step=step)
        news = now_seen.news
        stopped = now_seen.stopped()
        if stopped is not None:
            return Decision(action=stopped, events=news)
        given = deadlines(self.job, seen, self.created, self.until)
        deadline = missed(given, now, now if looked is None else looked)
        if deadline is not None:
            ended = Ended(state=State.LOST, reason=deadline.message)
            return Decision(action=ended, events=news + now_seen.without_place(deadline))
        if late:
            return Decision(action=_again(history, late), events=news)
        wait = self._wait(given, seen, now, progress)
        if not now_seen.losses:
            return Decision(action=wait)
        due = now_seen.due()
        if due > now:
            return Decision(action=replace(wait, until=min(due, wait.until)), events=news)
        restarts = now_seen.restarts()
        return Decision(action=restart_of(restarts), events=(*news, *restarts.values()))

    def can_adopt(self, events: Sequence[Event], seen: Seen, now: float) -> bool:
        """Whether a group of an earlier attempt can still succeed."""
        action = self.decide(events, seen, now).action
        if isinstance(action, Ended):
            return action.state is State.SUCCEEDED
        is_alive = any(not each.state.ended for each in seen.values())
        return is_alive or bool(behind(seen, self._history(events)))

    def _history(self, events: Sequence[Event]) -> Histories:
        return {name: History.of(name, events) for name in self.job.names()}

    def _taken_together(
        self,
        seen: Seen,
        history: Histories,
        late: Collection[ReplicaName],
        progress: Progress | None,
    ) -> Seen:
        """The observations, combined with what the event log says of each replica.

        A replica whose restart is still to be carried out has not started. A recorded failure stays
        valid, even if the replica seems to run: it was frozen, and resumed before its end.
        """
        found: dict[ReplicaName, Observation] = {}
        for name, each in seen.items():
            loss, allowed = history[name].loss, self._patience(history[name], progress)
            if name in late:
                found[name] = being_restarted(history[name])
            elif each.state in (State.SUCCEEDED, State.FAILED):
                found[name] = each
            elif loss is not None:
                found[name] = as_recorded(each, loss)
            elif each.state is State.RUNNING and (each.heartbeat_age or 0.0) > allowed:
                reason = unresponsive_reason(allowed)
                found[name] = replace(each, state=State.LOST, reason=reason, loss=Loss.HANG)
            else:
                found[name] = each
        return found

    def _patience(self, history: History, progress: Progress | None) -> float:
        """How long this replica may go without a heartbeat: longer until it has trained."""
        since = history.last_restart.at if history.last_restart else self.created
        return patience(self.job, trains=progress is not None and progress.at > since)

    def _wait(
        self, given: Sequence[Deadline], seen: Seen, now: float, progress: Progress | None
    ) -> Wait:
        """Wait until a deadline passes, or until a replica could first count as unresponsive."""
        ages = [each.heartbeat_age for each in seen.values() if each.heartbeat_age is not None]
        allowed = patience(self.job, trains=progress is not None)
        silence = now + max(0.0, allowed - max(ages)) if ages else float("inf")
        until = min((each.at for each in given if each.at > now), default=float("inf"))
        return Wait(min(until, silence), look_again=any(each.at <= now for each in given))


def _again(history: Mapping[ReplicaName, History], late: Collection[ReplicaName]) -> Restart:
    """The last recorded restarts of replicas whose restart was not carried out."""
    entries = {name: history[name].last_restart for name in late}
    return restart_of({name: each for name, each in entries.items() if each is not None})
