"""The event log of this replica: what it did and for how long, written to the store meanwhile."""

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress

from aerotrain.contract.event_log import Event, EventType, read
from aerotrain.contract.layout import CHIEF_LOG
from aerotrain.store import MissingError, Store
from aerotrain.training.background.uploader import Uploader
from aerotrain.training.checkpoints.interval import USUAL_MTBF, mean_time_between_failures


class EventWriter:
    """Writes events, after those of earlier processes of the same training.

    ``put`` writes the whole log; the default is the ``put`` of ``store``.
    """

    def __init__(
        self,
        store: Store,
        uploader: Uploader,
        put: Callable[[str, bytes], object] | None = None,
        *,
        restarts: int = 0,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self._store = store
        self._uploader = uploader
        self._put_object = put or store.put
        self._restarts = restarts
        self._clock = clock
        self._before: bytes | None = None
        self._lines: list[str] = []

    def note(
        self,
        event: EventType,
        *,
        seconds: float = 0.0,
        step: int | None = None,
        because: str = "",
        times: int = 1,
        at: float | None = None,
    ) -> None:
        """Add an event, at the current time or at ``at``. The uploader writes it to the store."""
        entry = Event(
            event=event,
            at=round(self._clock() if at is None else at, 3),
            seconds=round(seconds, 4),
            step=step,
            replica="chief",
            restarts=self._restarts,
            because=because,
            times=times,
        )
        self._lines.append(entry.to_json() + "\n")
        self._uploader.send("event log", self._put)

    @contextmanager
    def timed(self, event: EventType, *, step: Callable[[], int] | None = None) -> Iterator[None]:
        """Record the duration of this scope, and the ``step`` at its end."""
        began = self._clock()
        yield
        self.note(event, seconds=self._clock() - began, step=step and step())

    def mean_time_between_failures(self) -> float:
        """The mean time between failures in seconds, from the ends of earlier processes."""
        entries = read(self._past().decode().splitlines())
        begins = [index for index, each in enumerate(entries) if each.event is EventType.START]
        ends = [*begins[1:], len(entries)]
        lives = [entries[begin:end] for begin, end in zip(begins, ends, strict=True)]
        lasted = sum(life[-1].at - life[0].at for life in lives)
        good = (EventType.END, EventType.PREEMPTED)
        failures = sum(all(each.event not in good for each in life) for life in lives)
        return mean_time_between_failures(lasted, failures)

    def _past(self) -> bytes:
        """The event log of the processes before this one."""
        if self._before is None:
            before = b""
            with suppress(MissingError):
                before = self._store.get(CHIEF_LOG)
            self._before = before  # not known if the store was unavailable
        return self._before

    def _put(self) -> None:
        self._put_object(CHIEF_LOG, self._past() + "".join(self._lines).encode())


class NullEventWriter(EventWriter):
    """The event writer of a peer, which records nothing, because the chief does."""

    def note(self, *_event: object, **_values: object) -> None:
        """Do nothing; the chief records."""

    def mean_time_between_failures(self) -> float:
        """The usual value: only the chief saves."""
        return USUAL_MTBF
