"""A next try with fewer workers, where some of them found no place: fewer nodes after a failure.

The training goes on from its checkpoint, which any number of workers can take up.
"""

from collections.abc import Iterable
from dataclasses import replace

from aerotrain.contract.event_log import Event, EventType
from aerotrain.contract.job import Job, Role
from aerotrain.contract.status import Loss

#: The losses that say that there is no place for a replica, and not that it did anything wrong.
_NO_PLACE = frozenset({Loss.START, Loss.NODE})


def with_fewer_workers(job: Job, ledger: Iterable[Event]) -> Job:
    """The job without as many workers as had no place at the ends of earlier tries.

    ``ledger`` is that of all earlier tries. It keeps ``job.min_workers``, and is the same job
    where that is None.
    """
    if job.min_workers is None:
        return job
    workers = max(job.min_workers, job.count(Role.WORKER) - _without_place(ledger))
    replicas = (
        replace(each, count=workers) if each.role is Role.WORKER else each for each in job.replicas
    )
    return replace(job, replicas=tuple(replicas))


def _without_place(ledger: Iterable[Event]) -> int:
    """How many workers each set was without at its end, of all sets together."""
    missing: list[set[str]] = [set()]
    for entry in ledger:
        if entry.event is EventType.START and not entry.replica:
            missing.append(set())
        elif entry.event is EventType.RESTART:
            missing[-1].discard(entry.replica)
        elif entry.event is EventType.DETECT and _is_worker_without_place(entry):
            missing[-1].add(entry.replica)
    return sum(map(len, missing))


def _is_worker_without_place(entry: Event) -> bool:
    return entry.kind in _NO_PLACE and entry.replica.startswith(Role.WORKER)
