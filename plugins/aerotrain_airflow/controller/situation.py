"""The state of a group at one moment: which replicas have failed, and how they are restarted."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cached_property

from aerotrain.contract.event_log import Event, EventType
from aerotrain.contract.job import Job, ReplicaName
from aerotrain.contract.recovery import replicas_to_restart
from aerotrain.contract.status import Loss, Observation, State
from aerotrain_airflow.controller.deadlines import Deadline
from aerotrain_airflow.controller.decision import Restart
from aerotrain_airflow.controller.ended import Ended
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
Histories = Mapping[ReplicaName, History]


@dataclass(frozen=True, kw_only=True)
class Situation:
    """What was ``seen`` of the replicas of ``job`` at ``now``, at training step ``step``."""

    job: Job
    seen: Seen
    history: Histories
    now: float
    step: int | None

    @cached_property
    def losses(self) -> Mapping[ReplicaName, Event]:
        """The failures that have a cause of their own, each as the event that records it.

        A replica that only reports a missing peer failed because of that peer, and is left out.
        """
        lost = {name: each for name, each in self.seen.items() if each.state is State.LOST}
        own = {name for name, each in lost.items() if loss_of(each) is not Loss.TEMPORARY}
        return {
            name: self.history[name].loss or self._detected(name, loss_of(each), self.step)
            for name, each in lost.items()
            if not own or name in own
        }

    @property
    def news(self) -> tuple[Event, ...]:
        """Those of them that are not recorded yet."""
        return tuple(each for name, each in self.losses.items() if self.history[name].loss is None)

    @cached_property
    def verdicts(self) -> Mapping[ReplicaName, Verdict]:
        """The verdict on each failure."""
        return {
            name: judge(self.seen[name], each.step, self.history[name].earlier, self.job.restarts)
            for name, each in self.losses.items()
        }

    def stopped(self) -> Ended | None:
        """The end of the job, if a replica is not restarted any more."""
        found = {name: each for name, each in self.verdicts.items() if not each.comes_back}
        if not found:
            return None
        final = any(each.course is Course.STOP for each in found.values())
        return Ended(
            state=State.FAILED if final else State.LOST,
            reason="; ".join(f"{name} {each.why}" for name, each in found.items()),
            causes=tuple(found),
        )

    def without_place(self, deadline: Deadline) -> tuple[Event, ...]:
        """The replicas not started by this deadline, as events: the next attempt may omit them."""
        return tuple(self._detected(name, Loss.START, None) for name in deadline.waiting)

    @cached_property
    def silent(self) -> frozenset[ReplicaName]:
        """Replicas that seem to run, but that a peer reported as unresponsive when it ended."""
        named = frozenset[str]().union(
            *(
                self.seen[name].unresponsive
                for name in self.losses
                if loss_of(self.seen[name]) is Loss.HANG
            )
        )
        return frozenset(
            name for name, each in self.seen.items() if not each.state.ended and str(name) in named
        )

    @cached_property
    def names(self) -> frozenset[ReplicaName]:
        """The replicas that failed, and those that are restarted with them."""
        lost = {name for name, each in self.seen.items() if each.state is State.LOST}
        return replicas_to_restart(self.job, lost | self.silent)

    def due(self) -> float:
        """The time of the restart; it does not wait for unresponsive replicas to end."""
        all_ended = all(self.seen[name].state.ended for name in self.names - self.silent)
        losses = {name: (each, self.history[name].earlier) for name, each in self.losses.items()}
        return not_before(losses, all_ended=all_ended)

    def restarts(self) -> dict[ReplicaName, Event]:
        """Their restarts, as the events that record them."""
        because = "; ".join(f"{name} {each.why}" for name, each in self.verdicts.items())
        return {name: self._restart(name, because) for name in sorted(self.names)}

    def _restart(self, name: ReplicaName, because: str) -> Event:
        verdict, loss = self.verdicts.get(name), self.losses.get(name)
        is_moved = name in self.silent or (verdict and verdict.course is Course.ELSEWHERE)
        return Event(
            event=EventType.RESTART,
            at=self.now,
            step=self.step,
            replica=str(name),
            restarts=self.history[name].restarts + 1,
            because=because,
            node=self.seen[name].node if is_moved else "",
            memory=memory_factor([*self.history[name].earlier, *([loss] if loss else [])]),
            force=name in self.silent or loss_of(self.seen[name]) is Loss.NODE,
        )

    def _detected(self, name: ReplicaName, loss: Loss, step: int | None) -> Event:
        seen = self.seen[name]
        return Event(
            event=EventType.DETECT,
            at=self.now,
            step=step,
            replica=str(name),
            restarts=self.history[name].restarts,
            kind=loss.value,
            because=seen.reason,
            node=seen.node,
            unresponsive=tuple(sorted(seen.unresponsive)),
        )


def as_recorded(seen: Observation, loss: Event) -> Observation:
    """A replica whose failure was recorded, whatever was observed of it since."""
    return replace(
        seen,
        state=State.LOST,
        reason=loss.because,
        loss=Loss(loss.kind),
        node=loss.node or seen.node,
        unresponsive=frozenset(loss.unresponsive),
    )


def behind(seen: Seen, history: Histories) -> list[ReplicaName]:
    """The replicas whose restart was recorded but not carried out."""
    found = []
    for name, each in seen.items():
        wanted = history[name].restarts
        if wanted and (each.restarts is None or each.restarts < wanted):
            found.append(name)
    return found


def being_restarted(history: History) -> Observation:
    """The observation of a replica that is yet to be restarted."""
    restart = history.last_restart
    since = restart.at if restart is not None else None
    return Observation(state=State.PENDING, reason="waits to be restarted", waits_since=since)


def restart_of(entries: Mapping[ReplicaName, Event]) -> Restart:
    """The restart that these events record."""
    return Restart(
        counts={name: each.restarts for name, each in entries.items()},
        because=next(iter(entries.values())).because,
        avoid={name: each.node for name, each in entries.items() if each.node},
        memory={name: each.memory for name, each in entries.items() if each.memory != 1.0},
        force=frozenset(name for name, each in entries.items() if each.force),
    )
