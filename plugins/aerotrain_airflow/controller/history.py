"""What the event log says of one replica, and which of its events have to be kept."""

from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

from aerotrain.contract.event_log import Event, EventType
from aerotrain.contract.job import ReplicaName

#: The failures of each replica that are kept individually: more than any decision needs.
_KEPT = 8

#: The characters kept of the reason of an older event.
_REASON = 200


@dataclass(frozen=True)
class History:
    """The events of one replica, in the order of time."""

    events: Sequence[Event]

    @classmethod
    def of(cls, name: ReplicaName, events: Sequence[Event]) -> "History":
        return cls([each for each in events if each.replica == str(name)])

    @property
    def restarts(self) -> int:
        """The replica's restart count, including a recorded restart that was not carried out."""
        return max((each.restarts for each in self._all(EventType.RESTART)), default=0)

    @property
    def last_restart(self) -> Event | None:
        return next(reversed(self._all(EventType.RESTART)), None)

    @property
    def loss(self) -> Event | None:
        """The failure recorded since its last restart."""
        restarts = self.restarts
        found = (each for each in self._all(EventType.DETECT) if each.restarts == restarts)
        return next(found, None)

    @property
    def earlier(self) -> list[Event]:
        """Its failures before its last restart."""
        restarts = self.restarts
        return [each for each in self._all(EventType.DETECT) if each.restarts < restarts]

    def _all(self, what: EventType) -> list[Event]:
        return [each for each in self.events if each.event is what]


def size_of(events: Iterable[Event]) -> int:
    """The size of the events in bytes, one per line."""
    return sum(len(each.to_json().encode()) + 1 for each in events)


def compacted(events: Sequence[Event], limit: int) -> Sequence[Event]:
    """The events in at most about ``limit`` bytes, such that the controller decides the same.

    If they are larger, each replica keeps its last restart and its last failures; its older
    failures are summed up by kind.
    """
    if size_of(events) <= limit:
        return events
    kept: list[Event] = []
    by_replica: dict[str, list[Event]] = defaultdict(list)
    for each in events:
        by_replica[each.replica].append(each)
    for own in by_replica.values():
        losses = [each for each in own if each.event is EventType.DETECT]
        restarts = [each for each in own if each.event is EventType.RESTART]
        others = [each for each in own if each.event not in (EventType.DETECT, EventType.RESTART)]
        kept += _summed(losses[:-_KEPT]) + [_shortened(each) for each in losses[-_KEPT:-1]]
        kept += losses[-1:] + restarts[-1:] + others[:1] + others[1:][-_KEPT:]
    return sorted(kept, key=lambda each: each.at)


def _summed(losses: Iterable[Event]) -> list[Event]:
    """One event per failure kind, which counts for all of them."""
    last: dict[str, Event] = {}
    for each in losses:
        before = last[each.kind].times if each.kind in last else 0
        last[each.kind] = replace(each, because="", times=before + each.times)
    return list(last.values())


def _shortened(event: Event) -> Event:
    """The event with a shortened reason, still long enough to tell it from another."""
    return replace(event, because=event.because[:_REASON])
