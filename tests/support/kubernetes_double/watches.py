"""Watches: the changes of one kind, from one version on, as lines of JSON."""

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import suppress

from support.kubernetes_double.answers import ApiError, expired
from support.kubernetes_double.objects import Event, Objects, Selection

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
