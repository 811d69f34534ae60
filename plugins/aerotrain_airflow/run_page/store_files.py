"""Reads of the store for pages and browsers: objects, files, and lists of folders.

A browser needs no key of the store, nor access to it. Files were written by pipelines, so their
scripts must not act as the user who looks at them: they get an origin of their own, and load
nothing.

Many viewers ask for the same run every few seconds: an unchanged object is read once, and a slow
store delays no page.
"""

import html
import threading
import time
from collections.abc import Callable, Hashable, Iterable
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from mimetypes import guess_type
from typing import Generic, TypeVar
from urllib.parse import quote

from cachetools import LRUCache, cached

from aerotrain.contract.errors import FinalError
from aerotrain.store import Store
from aerotrain.store.protocol import StoredObject

#: The largest file that is shown, in bytes.
LARGEST = 64 << 20

#: The most entries of a list.
_MOST_ENTRIES = 1000

#: For every file: https://developer.mozilla.org/docs/Web/HTTP/Headers/Content-Security-Policy/sandbox
HEADERS = {
    "Content-Security-Policy": (
        "sandbox; default-src 'none'; style-src 'unsafe-inline'; img-src data:"
    ),
    "X-Content-Type-Options": "nosniff",
    "Cache-Control": "no-cache",
}

#: Types that a browser shows; anything else is text or a download.
_SHOWN = ("text/html", "application/json", "image/png", "image/jpeg", "image/svg+xml")
_TEXT = "text/plain; charset=utf-8"


@dataclass(frozen=True)
class File:
    """The content of a file and its type."""

    content: bytes
    kind: str


def file_of(store: Store, key: str) -> File:
    """The file ``key``.

    Raises:
        MissingError: there is none.
        FinalError: it is too large for a browser.
        SpecError: the key is not valid.
    """
    size = store.stat(key).size
    if size > LARGEST:
        raise FinalError(
            f"{store.url}/{key} has {size >> 20} MiB, and at most {LARGEST >> 20} MiB are shown; "
            "download it with a client of the store"
        )
    return File(store.get(key), _type(key))


def _type(key: str) -> str:
    guessed, _ = guess_type(key)
    if guessed in _SHOWN:
        return f"{guessed}; charset=utf-8" if guessed.startswith("text/") else guessed
    is_text = key.endswith((".jsonl", ".txt", ".log", ".py", ".csv"))
    return _TEXT if is_text else "application/octet-stream"


def list_page(store: Store, folder: str) -> str:
    """A page with the files and folders in ``folder``, which is empty or ends in a slash."""
    entries = _entries(folder, store.list(folder.rstrip("/")))
    rows = "".join(
        f'<tr><td><a href="{quote(name)}">{html.escape(name)}</a></td><td>{size:,}</td></tr>'
        for name, size in entries
    )
    title = html.escape(f"{store.url}/{folder}")
    table = f"<table><tr><th>name</th><th>bytes</th></tr>{rows}</table>"
    return (
        '<!doctype html><html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width"><meta name="color-scheme" '
        f'content="light dark"><title>{title}</title><style>body{{font:14px system-ui;margin:2em;'
        "overflow-wrap:anywhere}td,th{text-align:left;padding:.2em 2em .2em 0}"
        "td+td{text-align:right}</style></head><body>"
        f"<h1>{title}</h1>{table if rows else '<p>This folder is empty.</p>'}</body></html>"
    )


def _entries(folder: str, listed: Iterable[StoredObject]) -> list[tuple[str, int]]:
    """The names directly in a folder with the bytes of each: a folder's is the sum of its files."""
    sizes: dict[str, int] = {}
    for each in listed:
        rest = each.key.removeprefix(folder)
        first, slash, _ = rest.partition("/")
        name = first + slash
        if name not in sizes and len(sizes) == _MOST_ENTRIES:
            break
        sizes[name] = sizes.get(name, 0) + each.size
    return list(sizes.items())


Value = TypeVar("Value")

#: Objects that are kept, by key and version. Those of a run are at most some hundred kilobytes.
_MOST_OBJECTS = 1000

#: Seconds for which a request waits for the store, before it gets the last answer.
_PATIENCE = 4.0

#: Seconds for which an answer is new enough for other viewers.
_FRESH = 2.0

_MOST_ANSWERS = 100
_THREADS = 8


@cached(
    LRUCache(_MOST_OBJECTS),
    key=lambda store, found: (store.url, found.key, found.etag),
    lock=threading.Lock(),
)
def content_of(store: Store, found: StoredObject) -> bytes:
    """The content of an object of a listing, which is not read again while it is unchanged.

    Raises:
        MissingError: it was deleted meanwhile.
    """
    return store.get(found.key)


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
        self._last: LRUCache[Hashable, Answer[Value]] = LRUCache(_MOST_ANSWERS)
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
        with self._lock:
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
            with self._lock:
                self._last[key] = answer
            return answer

        with self._lock:
            running = self._running.get(key)
            if running is None:
                running = self._running[key] = self._threads.submit(work)
                running.add_done_callback(lambda _: self._running.pop(key, None))
            return running
