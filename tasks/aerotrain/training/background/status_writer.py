"""The status of this process, written to the store every few seconds: it is alive, its memory."""

import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import replace
from pathlib import Path
from typing import Self

from aerotrain.contract.errors import AerotrainError
from aerotrain.contract.layout import status_key
from aerotrain.contract.status import (
    REPORTED_EVERY,
    ProcessStatus,
    ReplicaStatus,
    StepTime,
)
from aerotrain.replica import Replica, began
from aerotrain.store import MissingError, Store, open_store

#: Seconds that the last report may take when the work has ended.
_LAST_SECONDS = 1.0

#: The files with the limit of this container, of cgroup v2 and v1. Without a limit they contain
#: "max" or a number near 2^63.
_LIMITS = (
    Path("/sys/fs/cgroup/memory.max"),
    Path("/sys/fs/cgroup/memory/memory.limit_in_bytes"),
)
_NO_LIMIT = 1 << 60


class StatusWriter:
    """Reports on one replica from a thread of its own; a report that fails is made again later."""

    def __init__(self, store: Store, name: str, node: str) -> None:
        #: Times of steps by replica, for the next report.
        self.step_times: Mapping[str, StepTime] = {}
        self._store = store
        self._key = status_key(name)
        self._earlier: ReplicaStatus | None = None
        self._process = ProcessStatus(began=began(), host=node)
        self._change = threading.Event()
        self._ends = False
        self._thread = threading.Thread(target=self._work, name="status", daemon=True)

    @classmethod
    @contextmanager
    def of(cls, replica: Replica) -> Iterator[Self]:
        """Report on ``replica`` while the scope runs, and once more at its end."""
        writer = cls(open_store(replica.job.prefix), str(replica.name), replica.node)
        writer._thread.start()
        try:
            yield writer
        finally:
            writer._ends = True
            writer._change.set()
            writer._thread.join(_LAST_SECONDS)

    def ready(self) -> None:
        """Report that this replica trains or serves; only the first call counts."""
        if self._process.ready is None:
            self._process = replace(self._process, ready=time.time())
            self._change.set()

    def _work(self) -> None:
        while True:
            self._change.clear()
            ends = self._ends
            # The page of the run shows less then; the training is not affected.
            with suppress(AerotrainError, OSError):
                self._report()
            if ends:
                return
            self._change.wait(REPORTED_EVERY)

    def _report(self) -> None:
        if self._earlier is None:
            self._earlier = ReplicaStatus(())
            with suppress(MissingError, ValueError):
                self._earlier = ReplicaStatus.from_json(self._store.get(self._key))
        now, peak = _memory()
        process = replace(
            self._process,
            seen=time.time(),
            memory=now,
            peak=peak,
            limit=_memory_limit(),
            step_times=self.step_times,
        )
        self._store.put(self._key, self._earlier.followed_by(process).to_json())


def _memory() -> tuple[int, int]:
    """The resident memory of this process in bytes, now and at most: proc_pid_status(5)."""
    found = {}
    for line in Path("/proc/self/status").read_text().splitlines():
        name, _, value = line.partition(":")
        if name in ("VmRSS", "VmHWM"):
            found[name] = int(value.split()[0]) * 1024
    return found["VmRSS"], found["VmHWM"]


def _memory_limit() -> int | None:
    """The memory limit of this container in bytes, if it has one."""
    for file in _LIMITS:
        with suppress(OSError, ValueError):
            limit = int(file.read_text())
            return limit if limit < _NO_LIMIT else None
    return None
