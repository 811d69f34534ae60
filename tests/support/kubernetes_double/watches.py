"""Watches: the changes of one kind, from one version on, as lines of JSON."""

import asyncio
import json
from collections import defaultdict
from collections.abc import AsyncIterator
from typing import Any

from support.kubernetes_double.answers import ApiError, expired
from support.kubernetes_double.kinds import Kind, Selector
from support.kubernetes_double.objects import Event, Objects, Stored

#: Put into a watch to end it as a broken connection does.
CUT = b""


class Watch:
    """One open watch."""

    def __init__(self, kind: Kind, namespace: str, selector: Selector, fields: dict[str, str]):
        self.kind = kind
        self.namespace = namespace
        self.selector = selector
        self.fields = fields
        self.lines: asyncio.Queue[bytes] = asyncio.Queue()

    @property
    def topic(self) -> tuple[Kind, str, str]:
        """A label that all events of this watch share, if its selector has one."""
        for each in self.selector:
            if each.wanted and each.values and len(each.values) == 1:
                return (self.kind, each.key, next(iter(each.values)))
        return (self.kind, "", "")

    def offer(self, event: Event, line: bytes) -> None:
        """Take the event if it is selected; report an object that left the selection as deleted."""
        stored = event.stored
        if self.namespace and stored.namespace != self.namespace:
            return
        if self.fields and not fields_match(stored, self.fields):
            return
        now = all(each.admits(stored.labels) for each in self.selector)
        before = event.earlier is not None and all(
            each.admits(event.earlier) for each in self.selector
        )
        if now and (before or event.type != "MODIFIED"):
            self.lines.put_nowait(line)
        elif now:
            self.lines.put_nowait(encode("ADDED", stored))
        elif before:
            self.lines.put_nowait(encode("DELETED", stored))


class Watches:
    """All open watches, fed by the changes of the objects."""

    def __init__(self, objects: Objects) -> None:
        self._objects = objects
        self._open: dict[tuple[Kind, str, str], list[Watch]] = defaultdict(list)
        objects.listeners.append(self._pass_on)

    def __len__(self) -> int:
        return sum(len(watches) for watches in self._open.values())

    async def follow(
        self, watch: Watch, since: int | None, seconds: float, bookmarks: float | None
    ) -> AsyncIterator[bytes]:
        """The lines of the watch until its timeout; an empty line means that the connection is cut.

        With ``since`` None it begins with all existing objects; ``bookmarks`` is the seconds
        between two.
        """
        if since is not None and since < self._objects.oldest[watch.kind]:
            yield encode_error(expired(since, self._objects.oldest[watch.kind]))
            return
        self._open[watch.topic].append(watch)
        try:
            self._begin(watch, since)
            if bookmarks and since is None:
                watch.lines.put_nowait(self._bookmark(watch.kind, begun=True))
            loop = asyncio.get_running_loop()
            end = loop.time() + seconds
            while (left := end - loop.time()) > 0:
                wait = min(left, bookmarks or left)
                try:
                    yield await asyncio.wait_for(watch.lines.get(), wait)
                except TimeoutError:
                    if bookmarks:
                        yield self._bookmark(watch.kind)
        finally:
            self._open[watch.topic].remove(watch)

    def cut(self) -> None:
        """Break the connection of every open watch."""
        for watch in self._all():
            watch.lines.put_nowait(CUT)

    def expire(self) -> None:
        """Send the error "version too old" to every open watch, and end it."""
        for watch in self._all():
            watch.lines.put_nowait(encode_error(expired(1, self._objects.version)))
            watch.lines.put_nowait(CUT)

    def _all(self) -> list[Watch]:
        return [watch for watches in self._open.values() for watch in watches]

    def _bookmark(self, kind: Kind, *, begun: bool = False) -> bytes:
        """A bookmark with the watch's version; ``begun`` marks the end of the initial objects."""
        metadata: dict[str, Any] = {"resourceVersion": str(self._objects.version)}
        if begun:
            metadata["annotations"] = {"k8s.io/initial-events-end": "true"}
        found: dict[str, Any] = {"kind": kind.kind, "apiVersion": kind.api_version}
        found |= {"metadata": metadata, "spec": {"containers": None}, "status": {}}
        return json.dumps({"type": "BOOKMARK", "object": found}).encode() + b"\n"

    def _begin(self, watch: Watch, since: int | None) -> None:
        if since is None:
            for stored in self._objects.select(watch.kind, watch.namespace, watch.selector):
                if fields_match(stored, watch.fields):
                    watch.lines.put_nowait(encode("ADDED", stored))
            return
        for event in self._objects.history[watch.kind]:
            if event.stored.version > since:
                watch.offer(event, encode(event.type, event.stored))

    def _pass_on(self, event: Event) -> None:
        kind, line = event.stored.kind, None
        labels = {**(event.earlier or {}), **event.stored.labels}
        former = (event.earlier or {}).items() - event.stored.labels.items()
        for topic in ((kind, "", ""), *((kind, *label) for label in {*labels.items(), *former})):
            for watch in self._open.get(topic, ()):
                line = line or encode(event.type, event.stored)
                watch.offer(event, line)


def fields_match(stored: Stored, fields: dict[str, str]) -> bool:
    """Whether the field selector matches the object."""
    if not fields:
        return True
    manifest = stored.manifest()
    for path, expected in fields.items():
        value: Any = manifest
        for key in path.split("."):
            value = value.get(key, "") if isinstance(value, dict) else ""
        if value != expected:
            return False
    return True


def encode(type_: str, stored: Stored) -> bytes:
    return b'{"type":"' + type_.encode() + b'","object":' + stored.whole() + b"}\n"


def encode_error(refusal: ApiError) -> bytes:
    return json.dumps({"type": "ERROR", "object": refusal.status()}).encode() + b"\n"
