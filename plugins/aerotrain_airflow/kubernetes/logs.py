"""The output of a group's replicas: live, complete, and repeated only after a follower is killed.

A kubelet, a proxy or the end of this process may interrupt a stream at any time. Every line has the
time at which its node received it, so a new stream continues after the last emitted line. That
position is stored with the group's owner at times, for a follower in another process.
"""

import asyncio
import json
from collections import defaultdict
from collections.abc import Callable, Coroutine, Iterable, Mapping
from contextlib import suppress
from typing import Any

from aerotrain.contract.errors import backoff
from aerotrain.contract.replicas import ReplicaName, Role
from aerotrain.launch.backend import Emit, LogLine
from aerotrain_airflow.kubernetes.cluster import ApiError, Cluster, UnavailableError
from aerotrain_airflow.kubernetes.identity import CONTAINER, POSITIONS, Handle, annotations
from aerotrain_airflow.kubernetes.lines import moment

#: The number of replicas whose lines are streamed as they are written; those of the others are read
#: when they or the job end. Each stream is a connection of its own.
LIVE = 16

#: Seconds between two writes of the positions: the lines of that time are repeated if a follower is
#: killed. One that is replaced stores them at its end.
STORE_EVERY = 60.0

#: Seconds that the logs of ended replicas may take to arrive, and those of one that is about to be
#: restarted.
_REST, _LAST_LINES = 10.0, 2.0

_PAUSES = (0.5, 5.0)

#: The roles whose lines matter most, if there are more replicas than streams.
_ORDER = (Role.CHIEF, Role.PS, Role.EVALUATOR, Role.WORKER, Role.INPUT)

Spawn = Callable[[Coroutine[Any, Any, None]], asyncio.Task[None]]


class PodLogs:
    """The logs of a group's replicas ``names``; ``emit`` gets each line once.

    It continues at the positions that the last follower stored with the owner. ``spawn`` starts a
    background task, and handles its failure.
    """

    def __init__(
        self,
        cluster: Cluster,
        owner: Mapping[str, Any],
        names: Iterable[ReplicaName],
        emit: Emit,
        spawn: Spawn,
    ) -> None:
        self._cluster = cluster
        self._handle = Handle.of(owner)
        self._emit = emit
        self._spawn = spawn
        # By replica, the time of the last line that was emitted, and as stored with the owner.
        stored = json.loads(annotations(owner).get(POSITIONS, "{}"))
        self._positions = {name: at for name, stamp in stored.items() if (at := moment(stamp))}
        self._stored = dict(self._positions)
        ranked = sorted(names, key=lambda name: (_ORDER.index(name.role), name.index))
        self._ended: defaultdict[ReplicaName, asyncio.Event] = defaultdict(asyncio.Event)
        self._live = set(ranked[:LIVE])
        self._pods: dict[ReplicaName, str] = {}  # of the replicas that began
        self._streams: dict[ReplicaName, asyncio.Task[None]] = {}
        self._storing = self._spawn(self._store_on())

    def follow(self, name: ReplicaName, pod: str, *, began: bool, ended: bool) -> None:
        """Stream the lines of its ``pod`` once it ``began``; read once more after it has ended."""
        if ended:
            self._ended[name].set()
        if began:
            self._pods[name] = pod
        if began and name not in self._streams and (name in self._live or ended):
            self._streams[name] = self._spawn(self._stream(name, pod))

    async def restart(self, names: Iterable[ReplicaName]) -> None:
        """Read the remaining lines of these replicas, and prepare for their restart."""
        last = [self._streams.pop(name) for name in names if name in self._streams]
        for name in names:
            self._ended.pop(name, None)
            self._pods.pop(name, None)
        if last:
            await asyncio.wait(last, timeout=_LAST_LINES)
        for stream in last:
            stream.cancel()  # a stream from an unresponsive node would never end

    async def finish(self) -> None:
        """Wait for the lines of ended replicas, and read the logs that were not streamed."""
        ended = [stream for name, stream in self._streams.items() if self._ended[name].is_set()]
        rest = [
            asyncio.ensure_future(self._read(name, pod, follow=False))
            for name, pod in self._pods.items()
            if name not in self._streams
        ]
        if ended or rest:
            done, late = await asyncio.wait([*ended, *rest], timeout=_REST)
            for read in late:
                read.cancel()
            for read in done:
                read.result()  # raises the error of ``emit``, if any

    async def close(self) -> None:
        """Stop reading, and store how far the logs were read."""
        tasks = [*self._streams.values(), self._storing]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await self._store()

    async def _stream(self, name: ReplicaName, pod: str) -> None:
        ended, pauses = self._ended[name], backoff(*_PAUSES)
        while True:
            is_last = ended.is_set()  # checked first: a read after the end is complete
            if await self._read(name, pod, follow=not is_last) and is_last:
                return
            pause = next(pauses)
            if is_last:
                await asyncio.sleep(pause)
            else:
                with suppress(TimeoutError):
                    async with asyncio.timeout(pause):
                        await ended.wait()

    async def _read(self, name: ReplicaName, pod: str, *, follow: bool) -> bool:
        """Read the new lines; returns whether the log was read to its end."""
        since = self._positions.get(str(name), "")
        try:
            lines = self._cluster.log(pod, container=CONTAINER, since=since, follow=follow)
            async for stamp, text in lines:
                if stamp > since:
                    self._emit(LogLine(name, text))
                    self._positions[str(name)] = stamp
        except UnavailableError:
            return False
        except ApiError as error:
            return error.status in (400, 404)  # it never started, or is gone: nothing to read
        return True

    async def _store_on(self) -> None:
        while True:
            await asyncio.sleep(STORE_EVERY)
            await self._store()

    async def _store(self) -> None:
        """Store the positions with the owner, if there are new ones."""
        positions = dict(self._positions)
        if positions != self._stored:
            noted = {"annotations": {POSITIONS: json.dumps(positions)}}
            with suppress(ApiError, UnavailableError):  # the next positions include these
                name, uid = self._handle.name, self._handle.uid
                await self._cluster.patch("ConfigMap", name, uid, metadata=noted)
                self._stored = positions
