"""Decides what becomes of a group of replicas: its end, a restart of some of them, or a wait.

All that it remembers is the group's event log, so that any process that follows the group next
goes on with its budgets, and finishes a restart that was recorded and not carried out.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from aerotrain.contract.job import Job, ReplicaName
from aerotrain.contract.ledger import Entry, What
from aerotrain.contract.recovery import comeback
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
from aerotrain_airflow.controller.restart_policy import (
    Course,
    Verdict,
    judge,
    loss_of,
    memory_factor,
    not_before,
)

Seen = Mapping[ReplicaName, Observation]


@dataclass(frozen=True)
class Progress:
    """The last progress line: the global step it names, and when it came by ``time.time()``."""

    step: int
    at: float


@dataclass(frozen=True, kw_only=True)
class Controller:
    """The controller of the group of ``job`` that was created at ``created``.

    ``until`` is when the task's own timeout ends. Both are times of ``time.time()``.
    """

    job: Job
    created: float
    until: float | None = None

    def decide(
        self,
        events: Sequence[Entry],
        seen: Seen,
        now: float,
        progress: Progress | None = None,
        looked: float | None = None,
    ) -> Decision:
        """What to do about a group with these ``events``, of which this was ``seen``.

        ``seen`` has every replica of the job, and ``looked`` is when that was asked for, if it is
        not just now. The events of the decision are to be kept before it
        is carried out; where another process has added some meanwhile, decide again.
        """
        history = {name: History.of(name, events) for name in self.job.names()}
        behind = _behind(seen, history)
        seen = self._taken_together(seen, history, behind, now, progress)
        if job_state(seen) in (State.SUCCEEDED, State.FAILED):
            return Decision(action=job_ended(seen))
        step = progress.step if progress else None
        losses = _losses(seen, history, now, step)
        new = tuple(each for name, each in losses.items() if history[name].loss is None)
        verdicts = {
            name: judge(seen[name], each.step, history[name].earlier, self.job.restarts)
            for name, each in losses.items()
        }
        stopped = {name: each for name, each in verdicts.items() if not each.comes_back}
        if stopped:
            return Decision(action=_stopped(stopped), events=new)
        given = deadlines(self.job, seen, self.created, self.until)
        late = missed(given, now, now if looked is None else looked)
        if late is not None:
            ended = Ended(state=State.LOST, reason=late.message)
            return Decision(action=ended, events=new + _no_place(late, seen, history, now))
        wait = self._wait(given, seen, now, progress)
        if behind:
            return Decision(action=_again({name: history[name] for name in behind}), events=new)
        if not losses:
            return Decision(action=wait)
        return self._restart(seen, history, losses, verdicts, wait, now, step, new)

    def can_adopt(self, events: Sequence[Entry], seen: Seen, now: float) -> bool:
        """Whether a group that an earlier try has left can still come to a good end."""
        action = self.decide(events, seen, now).action
        if isinstance(action, Ended):
            return action.state is State.SUCCEEDED
        return any(not each.state.ended for each in seen.values())

    def _taken_together(
        self,
        seen: Seen,
        history: Mapping[ReplicaName, History],
        behind: Iterable[ReplicaName],
        now: float,
        progress: Progress | None,
    ) -> Seen:
        """What was seen, with what is known of each replica besides.

        One that is still to be restarted has not started. A loss that was recorded stands, also
        where the replica seems to run: it was stopped, and has woken up before its end.
        """
        found = dict(seen)
        for name in behind:
            found[name] = _being_restarted(history[name])
        for name, each in found.items():
            recorded = history[name].loss
            if each.state in (State.SUCCEEDED, State.FAILED) or name in behind:
                continue
            if recorded is not None:
                found[name] = replace(
                    each,
                    state=State.LOST,
                    reason=recorded.because,
                    loss=Loss(recorded.kind),
                    node=recorded.node or each.node,
                    unresponsive=frozenset(recorded.unresponsive),
                )
            elif self._is_unresponsive(each, history[name], progress):
                allowed = self._patience(history[name], progress)
                found[name] = replace(
                    each,
                    state=State.LOST,
                    reason=unresponsive_reason(self.job, allowed),
                    loss=Loss.HANG,
                )
        return found

    def _is_unresponsive(
        self, seen: Observation, history: History, progress: Progress | None
    ) -> bool:
        return (
            seen.state is State.RUNNING
            and seen.heartbeat_age is not None
            and seen.heartbeat_age > self._patience(history, progress)
        )

    def _patience(self, history: History, progress: Progress | None) -> float:
        """For how long this replica may give no heartbeat: longer until it has trained."""
        since = history.last_restart.at if history.last_restart else self.created
        return patience(self.job, trains=progress is not None and progress.at > since)

    def _wait(
        self, given: Sequence[Deadline], seen: Seen, now: float, progress: Progress | None
    ) -> Wait:
        """Until a deadline passes, or a replica is found to be unresponsive at the earliest."""
        ages = [each.heartbeat_age for each in seen.values() if each.heartbeat_age is not None]
        allowed = patience(self.job, trains=progress is not None)
        silence = now + max(0.0, allowed - max(ages)) if ages else float("inf")
        until = min((each.at for each in given if each.at > now), default=float("inf"))
        return Wait(min(until, silence), look_again=any(each.at <= now for each in given))

    def _restart(
        self,
        seen: Seen,
        history: Mapping[ReplicaName, History],
        losses: Mapping[ReplicaName, Entry],
        verdicts: Mapping[ReplicaName, Verdict],
        wait: Wait,
        now: float,
        step: int | None,
        new: tuple[Entry, ...],
    ) -> Decision:
        """The restart of those that were lost and of those that must come with them, once due."""
        lost = {name for name, each in seen.items() if each.state is State.LOST}
        silent = _silent(seen, losses)
        names = comeback(self.job, lost | silent)
        all_ended = all(seen[name].state.ended for name in names - silent)
        due = not_before(
            {name: (each, history[name].earlier) for name, each in losses.items()},
            all_ended=all_ended,
        )
        if due > now:
            return Decision(action=replace(wait, until=min(due, wait.until)), events=new)
        because = "; ".join(f"{name} {each.why}" for name, each in verdicts.items())
        moved = {name for name, each in verdicts.items() if each.course is Course.ELSEWHERE}
        restarts = {
            name: Entry(
                event=What.RESTART,
                at=now,
                step=step,
                replica=str(name),
                generation=history[name].restarts + 1,
                because=because,
                node=seen[name].node if name in moved | silent else "",
                memory=memory_factor([*history[name].earlier, *_own(losses, name)]),
                force=name in silent or loss_of(seen[name]) is Loss.NODE,
            )
            for name in sorted(names)
        }
        return Decision(action=_restart_of(restarts), events=(*new, *restarts.values()))


def _behind(seen: Seen, history: Mapping[ReplicaName, History]) -> list[ReplicaName]:
    """Whose restart was recorded and is not carried out."""
    found = []
    for name, each in seen.items():
        wanted = history[name].restarts
        if wanted and (each.restarts is None or each.restarts < wanted):
            found.append(name)
    return found


def _being_restarted(history: History) -> Observation:
    """What is known of a replica that does not exist yet."""
    restart = history.last_restart
    since = restart.at if restart is not None else None
    reason = "waits to be restarted"
    return Observation(state=State.PENDING, reason=reason, waits_since=since)


def _losses(
    seen: Seen, history: Mapping[ReplicaName, History], now: float, step: int | None
) -> dict[ReplicaName, Entry]:
    """The losses that have a cause of their own, each as the event that records it.

    A replica that only misses another one was lost to that one.
    """
    lost = {name: each for name, each in seen.items() if each.state is State.LOST}
    own = {name for name, each in lost.items() if loss_of(each) is not Loss.TEMPORARY}
    return {
        name: history[name].loss or _detected(name, each, history[name], now, step)
        for name, each in lost.items()
        if not own or name in own
    }


def _detected(
    name: ReplicaName, seen: Observation, history: History, now: float, step: int | None
) -> Entry:
    return Entry(
        event=What.DETECT,
        at=now,
        step=step,
        replica=str(name),
        generation=history.restarts,
        kind=loss_of(seen).value,
        because=seen.reason,
        node=seen.node,
        unresponsive=tuple(sorted(seen.unresponsive)),
    )


def _no_place(
    deadline: Deadline, seen: Seen, history: Mapping[ReplicaName, History], now: float
) -> tuple[Entry, ...]:
    """Who had not started by its deadline: a next try may do without."""
    return tuple(
        _detected(name, replace(seen[name], loss=Loss.START), history[name], now, None)
        for name in deadline.waiting
    )


def _silent(seen: Seen, losses: Iterable[ReplicaName]) -> frozenset[ReplicaName]:
    """Those that seem to run, and gave no answer to one that hung for it and has ended itself."""
    named = frozenset[str]().union(
        *(seen[name].unresponsive for name in losses if loss_of(seen[name]) is Loss.HANG)
    )
    return frozenset(
        name for name, each in seen.items() if not each.state.ended and str(name) in named
    )


def _own(losses: Mapping[ReplicaName, Entry], name: ReplicaName) -> list[Entry]:
    return [losses[name]] if name in losses else []


def _again(histories: Mapping[ReplicaName, History]) -> Restart:
    """The restarts that were recorded last, of those who are behind."""
    entries = {
        name: each.last_restart for name, each in histories.items() if each.last_restart is not None
    }
    return _restart_of(entries)


def _restart_of(entries: Mapping[ReplicaName, Entry]) -> Restart:
    return Restart(
        counts={name: each.generation for name, each in entries.items()},
        because=next(iter(entries.values())).because,
        avoid={name: each.node for name, each in entries.items() if each.node},
        memory={name: each.memory for name, each in entries.items() if each.memory != 1.0},
        force=frozenset(name for name, each in entries.items() if each.force),
    )


def _stopped(verdicts: Mapping[ReplicaName, Verdict]) -> Ended:
    final = any(each.course is Course.STOP for each in verdicts.values())
    return Ended(
        state=State.FAILED if final else State.LOST,
        reason="; ".join(f"{name} {each.why}" for name, each in verdicts.items()),
        causes=tuple(verdicts),
    )
