"""What the replicas of a set write: live, whole, and once.

A stream can be cut at any time, by a kubelet, a proxy or our own end. Every line carries the
time at which its node took it, so a new stream goes on behind the last line that was told; how
far that is lies with the set's owner, for a follower in another process.
"""

import asyncio
import json
from collections.abc import Callable, Coroutine, Iterable, Mapping
from contextlib import suppress
from typing import Any

from aerotrain.contract.job import ReplicaName, Role
from aerotrain.contract.status import Observation
from aerotrain_airflow.launchers.base import Emit, LogLine
from aerotrain_airflow.pods.address import CONTAINER, POSITIONS, Address, annotations
from aerotrain_airflow.pods.cluster import ApiError, AwayError, Cluster

#: Replicas whose lines are streamed as they are written; those of the others are read when
#: they end, or when the job does. Each stream is a connection of its own.
LIVE = 16

#: Seconds between two notes of how far the logs were told: what a killed follower tells twice.
_NOTE_EVERY = 2.0

#: Seconds that the logs of what has ended may take to arrive.
_REST = 10.0

_PAUSE, _LONGEST_PAUSE = 0.5, 5.0

#: Whose lines matter most, where there are more replicas than streams.
_ORDER = (Role.CHIEF, Role.PS, Role.EVALUATOR, Role.WORKER)

Spawn = Callable[[Coroutine[Any, Any, None]], asyncio.Task[None]]


class PodLogs:
    """The logs of the set at ``address``; ``emit`` gets each line once.

    ``spawn`` starts work beside the caller's, and takes care of what fails in it.
    """

    def __init__(self, cluster: Cluster, address: Address, emit: Emit, spawn: Spawn) -> None:
        self._cluster = cluster
        self._address = address
        self._emit = emit
        self._spawn = spawn
        self._told: dict[str, str] = {}
        self._live: set[ReplicaName] = set()
        self._streams: dict[ReplicaName, asyncio.Task[None]] = {}
        self._ended: dict[ReplicaName, asyncio.Event] = {}
        self._news = asyncio.Event()
        self._noting: asyncio.Task[None] | None = None

    def go_on_from(self, owner: Mapping[str, Any], names: Iterable[ReplicaName]) -> None:
        """Begin where the set's owner says that the last follower was."""
        self._told = json.loads(annotations(owner).get(POSITIONS, "{}"))
        ranked = sorted(names, key=lambda name: (_ORDER.index(name.role), name.index))
        self._ended = {name: asyncio.Event() for name in ranked}
        self._live = set(ranked[:LIVE])
        self._noting = self._spawn(self._note_positions())

    def follow(self, name: ReplicaName, seen: Observation, *, began: bool) -> None:
        """Stream the replica's lines from when it ``began``; look once more when it has ended."""
        if seen.state.ended:
            self._ended[name].set()
        if began and name not in self._streams and (name in self._live or seen.state.ended):
            self._streams[name] = self._spawn(self._stream(name))

    async def finish(self) -> None:
        """Wait for the lines of what has ended, and read those that nobody streamed."""
        ended = [stream for name, stream in self._streams.items() if self._ended[name].is_set()]
        rest = [self._read(name, follow=False) for name in self._ended if name not in self._streams]
        waiting = [*ended, *map(asyncio.ensure_future, rest)]
        if waiting:
            await asyncio.wait(waiting, timeout=_REST)

    async def close(self) -> None:
        """Stop reading, and note how far it came."""
        tasks = [*self._streams.values(), *([self._noting] if self._noting else [])]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        if self._news.is_set():
            await self._note()

    async def _stream(self, name: ReplicaName) -> None:
        ended, pause = self._ended[name], _PAUSE
        while True:
            whole = ended.is_set()  # asked first: what is read after the end is all there is
            if await self._read(name, follow=not whole) and whole:
                return
            if whole:
                await asyncio.sleep(pause)
            else:
                with suppress(TimeoutError):
                    async with asyncio.timeout(pause):
                        await ended.wait()
            pause = min(2 * pause, _LONGEST_PAUSE)

    async def _read(self, name: ReplicaName, *, follow: bool) -> bool:
        """Tell what is new; whether it could be read to its end."""
        told = self._told.get(str(name), "")
        pod = self._address.pod(name)
        try:
            async for stamp, text in self._cluster.log(
                pod, container=CONTAINER, since=told, follow=follow
            ):
                if stamp > told:
                    self._emit(LogLine(name, text))
                    self._told[str(name)] = stamp
                    self._news.set()
        except AwayError:
            return False
        except ApiError as error:
            return error.status in (400, 404)  # it never began, or is gone: nothing to read
        return True

    async def _note_positions(self) -> None:
        while True:
            await self._news.wait()
            await asyncio.sleep(_NOTE_EVERY)
            await self._note()

    async def _note(self) -> None:
        self._news.clear()
        change = {"metadata": {"annotations": {POSITIONS: json.dumps(self._told)}}}
        with suppress(ApiError, AwayError):  # the next note holds this one too
            await self._cluster.patch("ConfigMap", self._address.name, change)
