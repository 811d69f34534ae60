"""What the event log says of one replica, and of the workers that a run could not place.

Also, which of its events have to be kept.
"""

from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

from aerotrain.contract.event_log import Event, EventType
from aerotrain.contract.job import Job
from aerotrain.contract.replicas import ReplicaName, Role
from aerotrain.contract.status import Failure

#: The failures of each replica that are kept individually: more than any decision needs.
_KEPT = 8

#: The characters kept of the reason of an older event. Reasons are compared only as far.
_REASON = 200

#: The failure kinds for which the cluster, and not the replica, is the cause.
_NO_PLACE = frozenset({Failure.START, Failure.NODE})


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
        failures = [each for each in own if each.event is EventType.DETECT]
        restarts = [each for each in own if each.event is EventType.RESTART]
        others = [each for each in own if each.event not in (EventType.DETECT, EventType.RESTART)]
        kept += _summed(failures[:-_KEPT])
        kept += [_shortened(each) for each in failures[-_KEPT:-1]]
        kept += failures[-1:] + restarts[-1:] + others[:1] + others[1:][-_KEPT:]
    return sorted(kept, key=lambda each: each.at)


def _summed(failures: Iterable[Event]) -> list[Event]:
    """One event per failure kind, which counts for all of them."""
    last: dict[str, Event] = {}
    for each in failures:
        before = last[each.kind].times if each.kind in last else 0
        last[each.kind] = replace(each, because="", times=before + each.times)
    return list(last.values())


def _shortened(event: Event) -> Event:
    return replace(event, because=event.because[:_REASON])


def is_alike(event: Event, reason: str, step: int) -> bool:
    """Whether an earlier failure had the same reason, which may be shortened, at the same step."""
    is_shortened = len(event.because) == _REASON
    same = reason.startswith(event.because) if is_shortened else event.because == reason
    return event.step == step and same


def with_fewer_workers(job: Job, events: Iterable[Event]) -> Job:
    """The job without the workers that could not be placed at the ends of earlier attempts.

    ``events`` is the event log of all earlier attempts. At least ``job.min_workers`` remain; the
    job is unchanged if that is None.
    """
    if job.min_workers is None:
        return job
    workers = max(job.min_workers, job.count(Role.WORKER) - _without_place(events))
    replicas = (
        replace(each, count=workers) if each.role is Role.WORKER else each for each in job.replicas
    )
    return replace(job, replicas=tuple(replicas))


def _without_place(events: Iterable[Event]) -> int:
    """How many workers each replica group was missing at its end, summed over all groups."""
    missing: list[set[str]] = [set()]
    for entry in events:
        if entry.event is EventType.START and not entry.replica:
            missing.append(set())
        elif entry.event is EventType.RESTART:
            missing[-1].discard(entry.replica)
        elif entry.event is EventType.DETECT and _is_worker_without_place(entry):
            missing[-1].add(entry.replica)
    return sum(map(len, missing))


def _is_worker_without_place(entry: Event) -> bool:
    return entry.kind in _NO_PLACE and entry.replica.startswith(Role.WORKER)
