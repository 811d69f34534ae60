"""The size that a user has set for a job: an object in the job's folder of the store.

``aerotrain scale``, ``suspend`` and ``resume`` write it, as the page of a run does. The process
that follows the job reads it every few seconds, and the controller decides what follows from it. At
the same times the event log of the group is written there, for that page, and less often the times
of steps are read that replicas report there.
"""

import json
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from math import inf
from typing import Any

from aerotrain.contract.errors import FinalError, SpecError
from aerotrain.contract.event_log import Event
from aerotrain.contract.job import Job
from aerotrain.contract.layout import GROUP_LOG, JOB, SIZE, status_key
from aerotrain.contract.replicas import Role
from aerotrain.contract.status import ReplicaStatus
from aerotrain.launch.size import WantedSize
from aerotrain.launch.stragglers import own_times
from aerotrain.store import MissingError, Store
from aerotrain.store.manifest import each_of

#: Seconds between two reads.
READ_EVERY = 3.0

#: Seconds between two reads of the times of steps, and for which a replica must have trained.
TIMES_EVERY, SETTLED = 60.0, 120.0

#: The module of a training: it saves when it is preempted, so that it can be suspended.
_TRAIN = "aerotrain.training.train"

#: Opens the store at a URL.
Open = Callable[[str], Store]


@dataclass
class Wanted:
    """The ``size`` that a user has set for a job; None until it was read.

    It is read ``every`` so many seconds, and the ``events`` of the group are written. ``times`` are
    those of the own parts of a step by replica.
    """

    size: WantedSize | None = None
    every: float = float("inf")
    events: Sequence[Event] = ()
    times: Mapping[str, float] = field(default_factory=dict)


@contextmanager
def watched(job: Job, open_store: Open | None) -> Iterator[Wanted]:
    """A scope in which a thread reads the wanted size of a job that can change its size."""
    wanted, over = Wanted(), threading.Event()

    def work() -> None:
        assert open_store is not None
        store: Store | None = None
        written: Sequence[Event] = ()
        times_due = 0.0
        while True:
            try:
                store = store or open_store(job.prefix)
                wanted.size = _read(store)
                if (events := wanted.events) != written:
                    lines = "".join(f"{each.to_json()}\n" for each in events)
                    store.put(GROUP_LOG, lines.encode())
                    written = events
                if time.monotonic() >= times_due and job.count(Role.WORKER):
                    times_due = time.monotonic() + TIMES_EVERY
                    wanted.times = _times(store, job)
            except Exception:  # noqa: BLE001 -- of the store, or of what gives access to it
                store = None  # the next one has a fresh credential
            if over.wait(READ_EVERY):
                return

    changes = len(job.sizes) > 1 or job.module == _TRAIN
    if open_store is not None and changes:
        wanted.every = READ_EVERY
        # Not waited for at the end: the store may not answer.
        threading.Thread(target=work, name="wanted size", daemon=True).start()
    try:
        yield wanted
    finally:
        over.set()


def _times(store: Store, job: Job) -> dict[str, float]:
    """Those of the replicas that have trained for some time."""

    def status(name: str) -> ReplicaStatus | None:
        with suppress(MissingError, ValueError):
            return ReplicaStatus.from_json(store.get(status_key(name)))
        return None

    names = [*map(str, job.names())]
    read = zip(names, each_of(status, names), strict=True)
    found = {name: each for name, each in read if each and each.processes}
    ready = {name: each.processes[-1].ready or inf for name, each in found.items()}
    since = time.time() - SETTLED
    return {name: each for name, each in own_times(found).items() if ready[name] < since}


def _read(store: Store) -> WantedSize:
    with suppress(MissingError, SpecError, ValueError):
        return WantedSize.from_json(store.get(SIZE))
    return WantedSize()


def want(store: Store, *, workers: int | None = None, suspended: bool | None = None) -> list[str]:
    """Set the size of the trainings in the folder of a run, or of one task of it.

    Returns:
        The URLs of the trainings.

    Raises:
        FinalError: there is no training, or it cannot have so many workers.
    """
    found = [each for each in store.list() if each.key.rpartition("/")[2] == JOB]
    jobs = {each.key: json.loads(store.get(each.key)) for each in found}
    trainings = {key: job for key, job in jobs.items() if job["module"] == _TRAIN}
    if not trainings:
        raise FinalError(
            f"there is no training in {store.url}; give the folder of a run or of its training, "
            "such as s3://bucket/digits/runs/RUN/train"
        )
    folders = [
        store.child(key.removesuffix(JOB).rstrip("/")) if "/" in key else store for key in trainings
    ]
    for folder, job in zip(folders, trainings.values(), strict=True):
        if workers is not None:
            _check(folder.url, job, workers)
        before = _read(folder)
        new = replace(before, workers=before.workers if workers is None else workers)
        if suspended is not None:
            new = replace(new, suspended=suspended)
        folder.put(SIZE, new.to_json())
    return [each.url for each in folders]


def _check(url: str, job: Mapping[str, Any], workers: int) -> None:
    for each in job["replicas"]:
        if each["role"] == Role.WORKER and each.get("least"):
            if each["least"] <= workers <= each["count"]:
                return
            raise FinalError(
                f"{url} may have {each['least']} to {each['count']} workers, and {workers} are "
                "asked for; give a number in this range"
            )
    raise FinalError(
        f"the number of workers of {url} is fixed; start a training with a range of them, such "
        'as workers="1..4"'
    )
