"""Decides on the size of a replica group: by the user's wish, the queue, the room, slow workers."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from aerotrain.contract.errors import counted
from aerotrain.contract.event_log import Event, EventType
from aerotrain.contract.replicas import ReplicaName, Role
from aerotrain.contract.status import Failure
from aerotrain.launch.decision import Decision, LastStep, Restart, Wait
from aerotrain.launch.restart_policy import (
    Histories,
    Observations,
    memory_factor,
    replicas_to_restart,
)
from aerotrain.launch.size import QUEUED, RESIZED, SUSPENDED, Size
from aerotrain.launch.stragglers import stragglers


@dataclass(frozen=True, kw_only=True)
class Resizing:
    """What changes the ``size`` of a group: the user's wish, and the room that there is.

    And what replaces its members without a failure: a queue that evicts them, and slow steps.

    ``seen`` are the observations of the replicas that the group asks for, of ``all_seen``.
    """

    size: Size
    seen: Observations
    all_seen: Observations
    history: Histories
    now: float
    last_step: LastStep | None

    def by_hand(self, new: Size, events: tuple[Event, ...] = ()) -> Decision:
        """Ask for the number of workers that the user wants."""
        if new.suspended:
            because = f"suspended by hand{self._at('after')}"
        elif self.size.suspended:
            because = "resumed by hand"
        else:
            because = f"{self._of(new.workers)} are asked for by hand"
        return self._change(new, because, events)

    def by_room(self, left_out: frozenset[ReplicaName]) -> Decision | None:
        """Go on without members that have no place, or with others that got one."""
        size = self.size
        dues = size.without_place(self.seen)
        missing = sorted(left_out - size.without if size.job.rules.peers else ())
        missing = missing or sorted(dues if dues and max(dues.values()) <= self.now else ())
        if missing:
            new = replace(size, without=size.without | {*missing})
            verb = "has" if len(missing) == 1 else "have"
            because = f"{self._of(_workers(new))} go on: {_listed(missing)} {verb} no place"
            return self._change(new, because, apart=left_out)
        joining, due = size.joining(self.seen)
        if joining and due <= self.now and not dues:
            new = replace(size, without=size.without - {*joining})
            verb = "has" if len(joining) == 1 else "have"
            goes_on = f"going on with {self._of(_workers(new))}{self._at('from')}"
            return self._change(new, f"{_listed(joining)} {verb} a place: {goes_on}")
        return None

    def by_queue(self) -> Decision | None:
        """Start all again of a group that its queue has evicted: they wait there."""
        evicted = {name: each for name, each in self.seen.items() if each.failure is Failure.QUEUE}
        if not evicted:
            return None
        name, seen = next(iter(evicted.items()))
        goes_on = f"it goes on once it is admitted again: {seen.sentence(name)}"
        because = f"evicted by the queue{self._at('after')}; {goes_on}"
        return self._change(self.size, because, kind=QUEUED, starts=self.size.names())

    def by_slowness(self, times: Mapping[str, float]) -> Decision | None:
        """Name a member that has become slow and, if the training says so, replace it."""
        members = {str(each): each for each in self.size.members()}
        for each in stragglers({name: time for name, time in times.items() if name in members}):
            name = members[each.replica]
            if self.history[name].slow_since > self.now - _NAMED_EVERY:
                continue
            slow = Event(
                event=EventType.STRAGGLER,
                at=self.now,
                step=self._step,
                replica=each.replica,
                because=str(each),
            )
            if self.size.job.arguments.get("stragglers") != "replace":
                return Decision(action=Wait(self.now), events=(slow,))
            names = replicas_to_restart(self.size.job, {name}) & {*members.values()}
            restarts = self._restarts(sorted(names), f"{each}; it is replaced", RESIZED)
            restarts[name] = replace(restarts[name], node=self.seen[name].node)
            return Decision(action=Restart.of(restarts), events=(slow, *restarts.values()))
        return None

    def dues(self) -> tuple[float, float]:
        """When to go on without members that have no place, and with others that got one."""
        joining, due = self.size.joining(self.seen)
        dues = self.size.without_place(self.seen).values()
        return max(dues, default=float("inf")), due if joining else float("inf")

    def end(self) -> Decision:
        """End the replicas that still run of a suspended group; then wait until it is resumed."""
        ends = self.size.to_end(self.all_seen)
        if not ends:
            return Decision(action=Wait(float("inf")))
        return Decision(action=Restart.of({}, ends, "suspended by hand"))

    def _change(
        self,
        new: Size,
        because: str,
        events: tuple[Event, ...] = (),
        apart: frozenset[ReplicaName] = frozenset(),
        kind: str = "",
        starts: Sequence[ReplicaName] = (),
    ) -> Decision:
        """The change to that size, which starts no replica that is ``apart``."""
        resize = Event(
            event=EventType.RESIZE,
            at=self.now,
            step=self._step,
            kind=SUSPENDED if new.suspended else kind,
            because=because,
            workers=new.workers,
            without=tuple(map(str, sorted(new.without))),
        )
        names = [each for each in starts or new.to_start(self.size) if each not in apart]
        restarts = self._restarts(names, because, kind or RESIZED)
        action = Restart.of(restarts, new.to_end(self.all_seen), because)
        return Decision(action=action, events=(*events, resize, *restarts.values()))

    def _restarts(
        self, names: Iterable[ReplicaName], because: str, kind: str
    ) -> dict[ReplicaName, Event]:
        return {
            name: Event(
                event=EventType.RESTART,
                at=self.now,
                step=self._step,
                replica=str(name),
                restarts=self.history[name].restarts + 1,
                kind=kind,
                because=because,
                memory=memory_factor(self.history[name].failures),
            )
            for name in names
        }

    @property
    def _step(self) -> int | None:
        return self.last_step.step if self.last_step else None

    def _of(self, workers: int) -> str:
        return f"{workers} of {counted(self.size.job.sizes[-1], 'worker')}"

    def _at(self, word: str) -> str:
        return f" {word} step {self.last_step.step}" if self.last_step else ""


#: Seconds after which a replica that is slow is named, and replaced, again.
_NAMED_EVERY = 3600.0

#: The number of replicas that the reason of a resize names.
_NAMED = 3


def _workers(size: Size) -> int:
    return sum(each.role is Role.WORKER for each in size.members())


def _listed(names: Sequence[ReplicaName]) -> str:
    """The first names in a sentence: each replica's restart has it."""
    said = list(map(str, names))
    if len(said) > _NAMED:
        said = [*said[: _NAMED - 1], f"{len(said) - _NAMED + 1} others"]
    return " and ".join(filter(None, [", ".join(said[:-1]), said[-1]]))
