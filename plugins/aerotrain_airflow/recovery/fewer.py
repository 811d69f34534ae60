"""Starts the next attempt with fewer workers if some could not be placed, as after a node failure.

Training continues from its checkpoint, which any number of workers can restore.
"""

from collections.abc import Iterable
from dataclasses import replace

from aerotrain.contract.event_log import Event, EventType
from aerotrain.contract.job import Job, Role
from aerotrain.contract.status import Loss

#: The failure kinds for which the cluster, and not the replica, is the cause.
_NO_PLACE = frozenset({Loss.START, Loss.NODE})


def with_fewer_workers(job: Job, ledger: Iterable[Event]) -> Job:
    """The job without the workers that could not be placed at the ends of earlier attempts.

    ``ledger`` is the event log of all earlier attempts. At least ``job.min_workers`` remain; the
    job is unchanged if that is None.
    """
    if job.min_workers is None:
        return job
    workers = max(job.min_workers, job.count(Role.WORKER) - _without_place(ledger))
    replicas = (
        replace(each, count=workers) if each.role is Role.WORKER else each for each in job.replicas
    )
    return replace(job, replicas=tuple(replicas))


def _without_place(ledger: Iterable[Event]) -> int:
    """How many workers each replica group was missing at its end, summed over all groups."""
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
