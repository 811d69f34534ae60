"""The watch of a group's pods, across failures of the API and stops of this process."""

import asyncio
import time
from collections.abc import Callable, Mapping
from contextlib import aclosing
from typing import Any

from aerotrain.contract.errors import backoff
from aerotrain.contract.replicas import ReplicaName
from aerotrain.launch.backend import Report
from aerotrain_airflow.kubernetes.cluster import ApiError, Cluster, UnavailableError

Manifest = Mapping[str, Any]

#: Seconds per watch: a dead connection is noticed after this time.
WATCH_SECONDS = 60

#: Seconds between two lists of all pods, which find what a watch may have missed.
RESYNC_SECONDS = 300

#: Seconds between two retries while the API is unavailable, first and at most.
_PAUSES = (0.5, 5.0)

#: Seconds between two beats of a pulse, and without one after which its process was stopped.
_BEAT, STOPPED = 1.0, 10.0


class StopDetector:
    """Says when this process was stopped: frozen, suspended, or busy with something else.

    ``clock`` gives seconds.
    """

    def __init__(self, say: Report, clock: Callable[[], float] = time.monotonic) -> None:
        self.now = clock
        self._say = say
        self._last = clock()
        self._stopped_until = float("-inf")

    async def run(self) -> None:
        """Beat until cancelled."""
        while True:
            await asyncio.sleep(_BEAT)
            self._beat()

    def was_stopped_since(self, since: float) -> bool:
        """Whether this process was stopped after ``since``."""
        self._beat()
        return self._stopped_until >= since

    def _beat(self) -> None:
        now = self.now()
        if now - self._last > STOPPED:
            self._stopped_until = now
            self._say(
                f"this process did not respond for {now - self._last:.0f} s: the triggerer was "
                "frozen, or busy with other tasks; the replicas have continued"
            )
        self._last = now


class PodWatch:
    """Reports every change of the pods with these ``labels``, across failures of the API.

    ``take`` gets each pod, and whether it is gone, and returns its replica if it is one of the
    group. ``took_all`` gets the replicas whose pods were in a complete list, and when that began.
    ``say`` gets messages about the API; ``pulse`` tells its failures from stops of this process.
    """

    def __init__(
        self,
        cluster: Cluster,
        labels: str,
        take: Callable[[Manifest, bool], ReplicaName | None],
        took_all: Callable[[set[ReplicaName], float], None],
        say: Report,
        pulse: StopDetector,
    ) -> None:
        self._cluster = cluster
        self._pulse = pulse
        self._labels = labels
        self._take = take
        self._took_all = took_all
        self._say = say
        self._listed = float("-inf")
        self._list_by = float("-inf")
        self._open: asyncio.Timeout | None = None

    def look_again(self) -> None:
        """List all pods immediately, instead of waiting for a change."""
        self._list_by = time.monotonic()
        if self._open is not None:
            self._open.reschedule(asyncio.get_running_loop().time())
            self._open = None  # once is enough

    async def run(self) -> None:
        """Watch until cancelled."""
        version, pauses, away = "", backoff(*_PAUSES), 0.0
        while True:
            began = self._pulse.now()
            try:
                if not version or self._is_list_due():
                    version = await self._list()
                if away:
                    self._say(f"the Kubernetes API is back after {time.monotonic() - away:.0f} s")
                    away, pauses = 0.0, backoff(*_PAUSES)
                opened = time.monotonic()
                version = await self._follow(version)
                if time.monotonic() < opened + _PAUSES[0] and not self._is_list_due():
                    await asyncio.sleep(_PAUSES[1])  # some proxies close every watch at once
            except (ApiError, UnavailableError) as error:
                version = ""
                has_expired = isinstance(error, ApiError) and error.status == 410
                if has_expired or self._pulse.was_stopped_since(began):
                    continue
                if not away:
                    away = time.monotonic()
                    self._say(f"the Kubernetes API is away ({error}); the replicas continue")
                await asyncio.sleep(next(pauses))

    def _is_list_due(self) -> bool:
        return self._listed < max(self._list_by, time.monotonic() - RESYNC_SECONDS)

    async def _list(self) -> str:
        """Process all current pods; returns the version from which to watch."""
        began, self._listed = time.time(), time.monotonic()
        there: set[ReplicaName] = set()
        version = ""
        async for pods, version in self._cluster.pages("Pod", labels=self._labels):  # noqa: B007
            there.update(name for pod in pods if (name := self._take(pod, False)) is not None)
        self._took_all(there, began)
        return version

    async def _follow(self, version: str) -> str:
        """Process changes until the watch ends or a list is due; returns the last version."""
        events = self._cluster.watch(
            "Pod", labels=self._labels, version=version, seconds=WATCH_SECONDS
        )
        try:
            async with asyncio.timeout(None) as self._open, aclosing(events):
                async for event in events:
                    version = event["object"]["metadata"]["resourceVersion"]
                    if event["type"] != "BOOKMARK":
                        self._take(event["object"], event["type"] == "DELETED")
        except TimeoutError:
            pass
        finally:
            self._open = None
        return version
