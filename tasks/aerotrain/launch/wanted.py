"""The size that a user has set for a job: an object in the job's folder of the store.

``aerotrain scale``, ``suspend`` and ``resume`` write it. Whoever follows the job reads it every few
seconds, and the controller decides what follows from it.
"""

import json
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import replace
from typing import Any

from aerotrain.contract.errors import FinalError, SpecError
from aerotrain.contract.job import Job
from aerotrain.contract.layout import JOB, SIZE
from aerotrain.contract.replicas import Role
from aerotrain.launch.size import WantedSize
from aerotrain.store import MissingError, Store

#: Seconds between two reads.
READ_EVERY = 3.0

#: The module of a training: it saves when it is preempted, so that it can be suspended.
_TRAIN = "aerotrain.training.train"

#: Opens the store at a URL.
Open = Callable[[str], Store]


class Wanted:
    """The ``size`` that a user has set for a job; None until it was read.

    It is read ``every`` so many seconds.
    """

    size: WantedSize | None = None
    every: float = float("inf")


@contextmanager
def watched(job: Job, open_store: Open | None) -> Iterator[Wanted]:
    """A scope in which a thread reads the wanted size of a job that can change its size."""
    wanted, over = Wanted(), threading.Event()

    def work() -> None:
        assert open_store is not None
        store: Store | None = None
        while True:
            try:
                store = store or open_store(job.prefix)
                wanted.size = _read(store)
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
