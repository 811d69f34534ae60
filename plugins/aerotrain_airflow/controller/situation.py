"""What is seen of a group at one moment: which replicas are lost, and what their restart is."""

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
    """What is ``seen`` of the replicas of ``job`` at ``now``, at ``step`` of their training."""

    job: Job
    seen: Seen
    history: Histories
    now: float
    step: int | None

    @cached_property
    def losses(self) -> Mapping[ReplicaName, Event]:
        """The losses that have a cause of their own, each as the event that records it.

        A replica that only misses another one was lost to that one.
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
        """What each loss means for its replica."""
        return {
            name: judge(self.seen[name], each.step, self.history[name].earlier, self.job.restarts)
            for name, each in self.losses.items()
        }

    def stopped(self) -> Ended | None:
        """The end of the job, where a replica is restarted no more."""
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
        """Who had not started by its deadline: a next try may do without."""
        return tuple(self._detected(name, Loss.START, None) for name in deadline.waiting)

    @cached_property
    def silent(self) -> frozenset[ReplicaName]:
        """Those that seem to run, and gave no answer to one that hung for it and ended itself."""
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
        """Those that were lost, and those that are restarted with them."""
        lost = {name for name, each in self.seen.items() if each.state is State.LOST}
        return replicas_to_restart(self.job, lost | self.silent)

    def due(self) -> float:
        """When they are to be restarted; what is silent is not waited for."""
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
            generation=self.history[name].restarts + 1,
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
            generation=self.history[name].restarts,
            kind=loss.value,
            because=seen.reason,
            node=seen.node,
            unresponsive=tuple(sorted(seen.unresponsive)),
        )


def as_recorded(seen: Observation, loss: Event) -> Observation:
    """A replica whose loss was recorded, whatever is seen of it since."""
    return replace(
        seen,
        state=State.LOST,
        reason=loss.because,
        loss=Loss(loss.kind),
        node=loss.node or seen.node,
        unresponsive=frozenset(loss.unresponsive),
    )


def behind(seen: Seen, history: Histories) -> list[ReplicaName]:
    """Whose restart was recorded and is not carried out."""
    found = []
    for name, each in seen.items():
        wanted = history[name].restarts
        if wanted and (each.restarts is None or each.restarts < wanted):
            found.append(name)
    return found


def being_restarted(history: History) -> Observation:
    """What is known of a replica that does not exist yet."""
    restart = history.last_restart
    since = restart.at if restart is not None else None
    return Observation(state=State.PENDING, reason="waits to be restarted", waits_since=since)


def restart_of(entries: Mapping[ReplicaName, Event]) -> Restart:
    """The restart that these events record."""
    return Restart(
        counts={name: each.generation for name, each in entries.items()},
        because=next(iter(entries.values())).because,
        avoid={name: each.node for name, each in entries.items() if each.node},
        memory={name: each.memory for name, each in entries.items() if each.memory != 1.0},
        force=frozenset(name for name, each in entries.items() if each.force),
    )
