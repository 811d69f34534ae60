"""Logs as the kubelet serves them, and watches: what a client follows."""

import asyncio
import json
import time
from collections import defaultdict
from collections.abc import AsyncIterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime

from support.kubernetes_double import answers
from support.kubernetes_double.answers import ApiError, expired
from support.kubernetes_double.api import is_true
from support.kubernetes_double.objects import PODS, Event, Objects, Selection

#: Put into a watch to end it as a broken connection does.
CUT = b""


class Watches:
    """All open watches, fed by the changes of the objects."""

    def __init__(self, objects: Objects) -> None:
        self._objects = objects
        self._open: list[tuple[Selection, asyncio.Queue[bytes]]] = []
        objects.listeners.append(self._pass_on)

    def __len__(self) -> int:
        return len(self._open)

    async def follow(
        self, selection: Selection, since: int | None, seconds: float
    ) -> AsyncIterator[bytes]:
        """The lines of the watch until its timeout; an empty line means that the connection is cut.

        With ``since`` None it begins with all existing objects.
        """
        if since is not None and since < self._objects.oldest:
            yield encode_error(expired(since))
            return
        lines: asyncio.Queue[bytes] = asyncio.Queue()
        watch = selection, lines
        self._open.append(watch)
        try:
            for event in self._begin(selection, since):
                lines.put_nowait(event.encoded())
            loop = asyncio.get_running_loop()
            end = loop.time() + seconds
            with suppress(TimeoutError):
                while True:
                    yield await asyncio.wait_for(lines.get(), end - loop.time())
        finally:
            self._open.remove(watch)

    def cut(self) -> None:
        """Break the connection of every open watch."""
        for _, lines in self._open:
            lines.put_nowait(CUT)

    def expire(self) -> None:
        """Send the error "version too old" to every open watch, and end it."""
        for _, lines in self._open:
            lines.put_nowait(encode_error(expired(1)))
            lines.put_nowait(CUT)

    def _begin(self, selection: Selection, since: int | None) -> list[Event]:
        if since is None:
            return [Event("ADDED", stored) for stored in self._objects.select(selection)]
        return [
            event
            for event in self._objects.history[selection.kind]
            if event.stored.version > since and selection.admits(event.stored)
        ]

    def _pass_on(self, event: Event) -> None:
        line = b""
        for selection, lines in self._open:
            if selection.admits(event.stored):
                line = line or event.encoded()
                lines.put_nowait(line)


def encode_error(refusal: ApiError) -> bytes:
    return json.dumps({"type": "ERROR", "object": refusal.status()}).encode() + b"\n"


@dataclass
class Log:
    """The output of one container, each line with the nanosecond at which it arrived."""

    lines: list[tuple[int, bytes]] = field(default_factory=list)
    first: int = 0  # older lines are in a file that has been rotated away
    closed: bool = False
    cuts: int = 0
    trouble: bytes = b""  # what the kubelet answers while it cannot read the file
    news: asyncio.Event = field(default_factory=asyncio.Event)

    def write(self, line: bytes) -> None:
        """Add a line; it has no line end if the container left it unfinished."""
        self.lines.append((time.time_ns(), line))
        self._tell()

    def close(self) -> None:
        self.closed = True
        self._tell()

    def rotate(self) -> None:
        """Begin a new file: a new request gets no older lines."""
        self.first = len(self.lines)

    def cut(self) -> None:
        self.cuts += 1
        self._tell()

    def _tell(self) -> None:
        self.news.set()
        self.news = asyncio.Event()


class Logs:
    """The logs of all containers, found by the pod's uid and the container's name."""

    def __init__(self, objects: Objects) -> None:
        self._objects = objects
        self._logs: defaultdict[str, dict[str, Log]] = defaultdict(dict)
        self._ended: set[str] = set()

    def of(self, uid: str, container: str) -> Log:
        return self._logs[uid].setdefault(container, Log(closed=uid in self._ended))

    def close(self, uid: str) -> None:
        """Close the logs of all containers of this pod: no more lines will come."""
        self._ended.add(uid)
        for log in self._logs[uid].values():
            log.close()

    def cut(self) -> None:
        """Break every log that is being followed."""
        for logs in self._logs.values():
            for log in logs.values():
                log.cut()

    def read(self, namespace: str, pod: str, query: Mapping[str, str]) -> AsyncIterator[bytes]:
        """The response to ``GET pods/NAME/log``.

        Raises:
            ApiError: there is no such pod or container, or it has no log yet.
        """
        stored = self._objects.find(PODS, namespace, pod)
        if stored is None:
            raise answers.not_found("pods", pod)
        manifest = stored.manifest()
        container = query.get("container") or manifest["spec"]["containers"][0]["name"]
        statuses = manifest["status"].get("containerStatuses", ())
        states = {each["name"]: each["state"] for each in statuses}
        if "waiting" in states.get(container, {"waiting": {}}):
            message = f'container "{container}" in pod "{pod}" is waiting to start'
            raise answers.ApiError(400, message)
        return _lines(self.of(stored.uid, container), query)


async def _lines(log: Log, query: Mapping[str, str]) -> AsyncIterator[bytes]:
    stamped, follow = (is_true(query.get(name, "")) for name in ("timestamps", "follow"))
    # An API server passes ``sinceTime`` on to the kubelet in whole seconds.
    since = 0
    if "sinceTime" in query:
        since = int(datetime.fromisoformat(query["sinceTime"]).timestamp()) * 10**9
    at = log.first
    cuts = log.cuts
    if log.trouble:
        yield log.trouble
        return
    while True:
        news = log.news
        batch = log.lines[at:]
        at += len(batch)
        new = b"".join(
            _stamp(when) + line if stamped else line for when, line in batch if when >= since
        )
        if new:
            yield new
        if log.cuts > cuts:
            yield CUT
        if not follow or (log.closed and at == len(log.lines)):
            return
        if news is log.news:
            await news.wait()


def _stamp(nanoseconds: int) -> bytes:
    """RFC 3339 with nine digits: the kubelet's RFC3339NanoFixed."""
    seconds, rest = divmod(nanoseconds, 10**9)
    moment = datetime.fromtimestamp(seconds, UTC)
    return f"{moment:%Y-%m-%dT%H:%M:%S}.{rest:09d}Z ".encode()
