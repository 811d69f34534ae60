"""The ledger of this replica: what it did and for how long, kept in the store as it goes."""

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from aerotrain.contract.event_log import Event, EventType, read
from aerotrain.store import MissingError, Store
from aerotrain.training.background.uploader import Uploader
from aerotrain.training.intervals import USUAL_MTBF, mean_time_between_failures

#: The ledger of the chief, an entry a line, in the store of its training.
KEY = "ledger-chief.jsonl"


class EventWriter:
    """Writes entries, after those that an earlier process of the same training has left.

    ``put`` writes the whole ledger to ``store``, if that is not the store's own way.
    """

    def __init__(
        self,
        store: Store,
        uploader: Uploader,
        put: Callable[[str, bytes], object] | None = None,
        *,
        generation: int = 0,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self._store = store
        self._uploader = uploader
        self._put_object = put or store.put
        self._generation = generation
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
        at: float | None = None,
    ) -> None:
        """Add an entry of now, or of the time ``at``; it reaches the store by itself."""
        entry = Event(
            event=event,
            at=round(self._clock() if at is None else at, 3),
            seconds=round(seconds, 4),
            step=step,
            replica="chief",
            generation=self._generation,
            because=because,
        )
        self._lines.append(entry.to_json() + "\n")
        self._uploader.send("ledger", self._put)

    @contextmanager
    def timed(self, event: EventType, *, step: Callable[[], int] | None = None) -> Iterator[None]:
        """Note how long what is done in this scope takes, at the ``step`` it leads to."""
        began = self._clock()
        yield
        self.note(event, seconds=self._clock() - began, step=step and step())

    def mean_time_between_failures(self) -> float:
        """Seconds, from how the processes of this training have ended before."""
        entries = read(self._past().decode().splitlines())
        begins = [index for index, each in enumerate(entries) if each.event is EventType.START]
        ends = [*begins[1:], len(entries)]
        lives = [entries[begin:end] for begin, end in zip(begins, ends, strict=True)]
        lasted = sum(life[-1].at - life[0].at for life in lives)
        good = (EventType.END, EventType.TOLD_TO_GO)
        failures = sum(all(each.event not in good for each in life) for life in lives)
        return mean_time_between_failures(lasted, failures)

    def _past(self) -> bytes:
        """What the processes before this one have left."""
        if self._before is None:
            try:
                self._before = self._store.get(KEY)
            except MissingError:
                self._before = b""
        return self._before

    def _put(self) -> None:
        self._put_object(KEY, self._past() + "".join(self._lines).encode())


class NullEventWriter(EventWriter):
    """What a peer of the chief's keeps: nothing, for the chief does."""

    def note(self, *_event: object, **_values: object) -> None:
        """Leave it to the chief."""

    def mean_time_between_failures(self) -> float:
        """What is usual: it is the chief that saves."""
        return USUAL_MTBF
