"""What a replica writes to the store while it trains: uploads, events, curves, and its status.

The uploader is one thread. A new upload replaces one that waits under the same name, so only the
newest of each name is held. While the store is unavailable, uploads are repeated.
"""

import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import KW_ONLY, dataclass, replace
from pathlib import Path
from typing import Any, Self

from aerotrain.contract.curves import MOST_POINTS, Curves, Point
from aerotrain.contract.errors import AerotrainError, TemporaryError, backoff
from aerotrain.contract.event_log import Event, EventType
from aerotrain.contract.layout import CHIEF_LOG, CURVES, status_key
from aerotrain.contract.status import (
    REPORTED_EVERY,
    ProcessStatus,
    ReplicaStatus,
    StepTime,
)
from aerotrain.replica import Replica, began
from aerotrain.store import MissingError, Store, StoreRefused, open_store

#: Seconds between two attempts; they double after each failure.
_FIRST_PAUSE, _LONGEST_PAUSE = 0.5, 15.0

Upload = Callable[[], None]


class Uploader:
    """Runs uploads one after another, and repeats those that failed temporarily.

    ``deadline`` is the number of seconds for which they may fail in a row.
    """

    def __init__(self, deadline: float, clock: Callable[[], float] = time.monotonic) -> None:
        self._deadline = deadline
        self._clock = clock
        self._change = threading.Condition()
        self._waiting: dict[str, Upload] = {}
        self._running: str | None = None
        self._final: BaseException | None = None
        #: Uploads whose last attempt failed, with the error and the time of the first failure.
        self._failing: dict[str, tuple[Exception, float]] = {}
        self._thread = threading.Thread(target=self._work, name="uploader", daemon=True)
        self._thread.start()

    def send(self, name: str, upload: Upload) -> None:
        """Run ``upload`` soon, instead of what waits under ``name``."""
        with self._change:
            self._waiting[name] = upload
            self._change.notify_all()

    def check(self) -> None:
        """Raise an error that no further attempt can fix.

        Raises:
            FinalError: an upload failed for good.
            TemporaryError: the store has been unavailable for longer than the deadline.
        """
        with self._change:
            if self._final is not None:
                raise self._final
            if (error := self._late()) is not None:
                raise TemporaryError(
                    f"the store has failed for more than {self._deadline:g} s: {error}"
                ) from error

    def wait(self, seconds: float) -> bool:
        """Wait until all uploads are done, or cannot be done; return whether they are done."""
        until = self._clock() + seconds
        with self._change:
            while self._waiting or self._running:
                left = until - self._clock()
                if left <= 0 or self._late() or self._final is not None:
                    return False
                self._change.wait(min(left, 1.0))
            return self._final is None

    def _late(self) -> Exception | None:
        now = self._clock()
        late = (error for error, since in self._failing.values() if now - since > self._deadline)
        return next(late, None)

    def _work(self) -> None:
        pauses = backoff(_FIRST_PAUSE, _LONGEST_PAUSE)
        while True:
            with self._change:
                self._change.wait_for(lambda: self._waiting)
                name = self._running = next(iter(self._waiting))
                upload = self._waiting.pop(name)
            try:
                upload()
            except (TemporaryError, StoreRefused, OSError) as error:
                self._again(name, upload, error, next(pauses))
            except BaseException as error:  # noqa: BLE001 -- the training's thread raises it
                with self._change:
                    self._running, self._final = None, error
                    self._change.notify_all()
                return
            else:
                pauses = backoff(_FIRST_PAUSE, _LONGEST_PAUSE)
                with self._change:
                    self._running = None
                    if self._failing.pop(name, None) and not self._failing:
                        print("all failed uploads are in the store now", flush=True)
                    self._change.notify_all()

    def _again(self, name: str, upload: Upload, error: Exception, pause: float) -> None:
        """Queue the upload again, unless a newer one has its name."""
        with self._change:
            self._running = None
            if not self._failing:
                print(f"warning: {error}; training continues, and tries it again", flush=True)
            _, since = self._failing.get(name, (error, self._clock()))
            self._failing[name] = error, since
            self._waiting.setdefault(name, upload)
            self._change.notify_all()
            newest = dict(self._waiting)
            # A new upload does not wait: at least its files can be written to the disk.
            self._change.wait_for(lambda: self._waiting != newest, pause)


class Interval:
    """Due once in every ``seconds`` of ``clock``, which must be monotonic.

    With ``most``, the seconds double each time that it was due, up to so many.
    """

    def __init__(
        self, seconds: float, clock: Callable[[], float], most: float | None = None
    ) -> None:
        self.seconds = seconds
        self._most = seconds if most is None else most
        self._clock = clock
        self._last = clock()

    def due(self) -> bool:
        """Whether it is due; if so, the next interval starts now."""
        now = self._clock()
        if now - self._last < self.seconds:
            return False
        self._last = now
        self.seconds = min(2 * self.seconds, self._most)
        return True


@dataclass
class EventWriter:
    """Writes events, after those of earlier processes of the same training.

    ``put`` writes the whole log; the default is the ``put`` of ``store``. The writer of a peer,
    which is not ``active``, records nothing, because the chief does.
    """

    store: Store
    uploader: Uploader
    put: Callable[[str, bytes], object] | None = None
    _: KW_ONLY
    active: bool = True
    restarts: int = 0
    clock: Callable[[], float] = time.time

    def __post_init__(self) -> None:
        self._before: bytes | None = None
        self._lines: list[str] = []

    def note(
        self,
        event: EventType,
        *,
        seconds: float = 0.0,
        step: int | None = None,
        because: str = "",
        at: float | None = None,
    ) -> None:
        """Add an event, at the current time or at ``at``. The uploader writes it to the store."""
        if not self.active:
            return
        entry = Event(
            event=event,
            at=round(self.clock() if at is None else at, 3),
            seconds=round(seconds, 4),
            step=step,
            replica="chief",
            restarts=self.restarts,
            because=because,
        )
        self._lines.append(entry.to_json() + "\n")
        self.uploader.send("event log", self._write)

    def _past(self) -> bytes:
        """The event log of the processes before this one."""
        if self._before is None:
            before = b""
            with suppress(MissingError):
                before = self.store.get(CHIEF_LOG)
            self._before = before  # not known if the store was unavailable
        return self._before

    def _write(self) -> None:
        (self.put or self.store.put)(CHIEF_LOG, self._past() + "".join(self._lines).encode())


#: Seconds between two uploads of the curves, and the most between two points.
_EVERY = 5.0


def seconds_between_points(elapsed: float) -> float:
    """The least time between two points of a training that has run for ``elapsed`` seconds.

    A point costs a millisecond. So each execution of a short training has one, and of a long one
    those that a chart can show apart: at the beginning all that it shows for each minute.
    """
    return min(max(elapsed, 60.0) / MOST_POINTS, elapsed / 100, _EVERY)


@dataclass
class CurveWriter:
    """Adds points to the curves of earlier processes of the same training.

    ``put`` writes the object. The rest is as for ``Curves``.
    """

    store: Store
    uploader: Uploader
    put: Callable[[str, bytes], object]
    _: KW_ONLY
    steps: int
    data: str
    clock: Callable[[], float] = time.monotonic
    now: Callable[[], float] = time.time

    def __post_init__(self) -> None:
        self._curves: Curves | None = None
        #: Points that the uploader has not written yet.
        self._new: deque[Point] = deque()
        self._upload = Interval(_EVERY, self.clock)
        self._began: float | None = None
        self._last = 0.0

    def due(self) -> bool:
        """Whether a point is due: see ``seconds_between_points``."""
        now = self.clock()
        if self._began is None:
            self._began = self._last = now
        if now - self._last < seconds_between_points(now - self._began):
            return False
        self._last = now
        return True

    def add(self, step: int, metrics: Mapping[str, float], *, at_once: bool = False) -> None:
        """Add a point; the uploader writes the curves, with ``at_once`` now."""
        self._add(Point(at=self.now(), step=step, metrics=metrics), at_once=at_once)

    def add_epoch(self, epoch: int, step: int, metrics: Mapping[str, float]) -> None:
        """Add the metrics of a whole epoch, counted from 0, after which ``step`` steps are done."""
        self._add(Point(at=self.now(), step=step, metrics=metrics, epoch=epoch), at_once=False)

    def publish(self) -> None:
        """Write the curves now, in the background."""
        self.uploader.send(CURVES, self._write)

    def _add(self, point: Point, *, at_once: bool) -> None:
        self._new.append(point)
        if self._upload.due() or at_once:
            self.publish()

    def _write(self) -> None:
        if self._curves is None:
            earlier: list[Point] = []
            with suppress(MissingError):
                earlier = Curves.from_bytes(self.store.get(CURVES)).points
            self._curves = Curves(self.steps, self.data, earlier)
        while self._new:
            self._curves.add(self._new.popleft())
        self.put(CURVES, self._curves.to_bytes())


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
        process = replace(self._process, seen=time.time(), step_times=self.step_times, **_memory())
        self._store.put(self._key, self._earlier.followed_by(process).to_json())


def _memory() -> dict[str, Any]:
    """Bytes of resident memory of this process, now and at most, and the container's limit.

    See proc_pid_status(5).
    """
    found: dict[str, Any] = {"limit": None}
    for line in Path("/proc/self/status").read_text().splitlines():
        name, _, value = line.partition(":")
        if key := {"VmRSS": "memory", "VmHWM": "peak"}.get(name):
            found[key] = int(value.split()[0]) * 1024
    for file in _LIMITS:
        with suppress(OSError, ValueError):
            limit = int(file.read_text())
            return found | {"limit": limit if limit < _NO_LIMIT else None}
    return found
