"""Reads of the store for pages: an unchanged object is read once, and a slow store delays no page.

Many viewers ask for the same run every few seconds.
"""

import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Hashable
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from typing import Generic, TypeVar

from aerotrain.store import Store
from aerotrain.store.protocol import StoredObject

Value = TypeVar("Value")

#: Objects that are kept, by key and version. Those of a run are at most some hundred kilobytes.
_MOST_OBJECTS = 1000

#: Seconds for which a request waits for the store, before it gets the last answer.
_PATIENCE = 4.0

#: Seconds for which an answer is new enough for other viewers.
_FRESH = 2.0

_MOST_ANSWERS = 100
_THREADS = 8


class Recent(Generic[Value]):
    """The most recently used values by key."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._values: OrderedDict[Hashable, Value] = OrderedDict()
        self._lock = threading.Lock()

    def get(self, key: Hashable) -> Value | None:
        with self._lock:
            if key in self._values:
                self._values.move_to_end(key)
            return self._values.get(key)

    def put(self, key: Hashable, value: Value) -> None:
        with self._lock:
            self._values[key] = value
            self._values.move_to_end(key)
            while len(self._values) > self._most:
                self._values.popitem(last=False)


_objects: Recent[bytes] = Recent(_MOST_OBJECTS)


def content_of(store: Store, found: StoredObject) -> bytes:
    """The content of an object of a listing, which is not read again while it is unchanged.

    Raises:
        MissingError: it was deleted meanwhile.
    """
    key = (store.url, found.key, found.etag)
    content = _objects.get(key)
    if content is None:
        content = store.get(found.key)
        _objects.put(key, content)
    return content


@dataclass(frozen=True)
class Answer(Generic[Value]):
    """A value that was read at the time ``at``, and the error of a later attempt, if any."""

    value: Value
    at: float
    error: str = ""


class Answers(Generic[Value]):
    """The last answer by key. Each is read in the background, by one thread at a time."""

    def __init__(self, now: Callable[[], float] = time.time) -> None:
        self._now = now
        self._last: Recent[Answer[Value]] = Recent(_MOST_ANSWERS)
        self._running: dict[Hashable, Future[Answer[Value]]] = {}
        self._lock = threading.Lock()
        self._threads = ThreadPoolExecutor(_THREADS, thread_name_prefix="run-page")

    def get(
        self, key: Hashable, read: Callable[[], Value], patience: float = _PATIENCE
    ) -> Answer[Value]:
        """What ``read`` returns, or an earlier answer if that takes more than ``patience`` seconds.

        Raises:
            TimeoutError: there is no earlier answer.
            Exception: what ``read`` raises, without an earlier answer.
        """
        last = self._last.get(key)
        if last is not None and self._now() - last.at < _FRESH:
            return last
        try:
            return self._started(key, read).result(patience)
        except Exception as error:
            if last is None:
                raise
            reason = "it does not answer" if isinstance(error, TimeoutError) else str(error)
            return Answer(last.value, last.at, reason)

    def _started(self, key: Hashable, read: Callable[[], Value]) -> Future[Answer[Value]]:
        def work() -> Answer[Value]:
            answer = Answer(read(), self._now())
            self._last.put(key, answer)
            return answer

        with self._lock:
            running = self._running.get(key)
            if running is None:
                running = self._running[key] = self._threads.submit(work)
                running.add_done_callback(lambda _: self._running.pop(key, None))
            return running
