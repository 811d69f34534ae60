"""A watch over the pods of a group, and an occasional list of all of them."""

import asyncio
import time
from collections.abc import Callable, Mapping
from contextlib import aclosing
from typing import Any

from aerotrain.contract.job import ReplicaName
from aerotrain_airflow.backends.kubernetes.cluster import ApiError, AwayError, Cluster

#: Seconds per watch: a dead connection is noticed after this time.
WATCH_SECONDS = 60

#: Seconds between two lists of all pods, which find what a watch may have missed.
RESYNC_SECONDS = 300

#: Seconds between two retries while the API is unavailable, first and at most.
_PAUSES = (0.5, 5.0)

#: Processes a pod, and whether it is gone; returns its replica, if it is one's.
Take = Callable[[Mapping[str, Any], bool], ReplicaName | None]

#: Processes the replicas whose pods were in a complete list, and when that began.
TakeAll = Callable[[set[ReplicaName], float], None]


class PodWatch:
    """Reports every change of the pods with these ``labels``, across failures of the API.

    ``say`` gets messages about the API.
    """

    def __init__(
        self,
        cluster: Cluster,
        labels: str,
        take: Take,
        taken_all: TakeAll,
        say: Callable[[str], None],
    ) -> None:
        self._cluster = cluster
        self._labels = labels
        self._take = take
        self._taken_all = taken_all
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
        version, pause, away = "", _PAUSES[0], 0.0
        while True:
            try:
                if not version or self._is_list_due():
                    version = await self._list()
                if away:
                    self._say(f"the Kubernetes API is back after {time.monotonic() - away:.0f} s")
                    away, pause = 0.0, _PAUSES[0]
                began = time.monotonic()
                version = await self._follow(version)
                if time.monotonic() < began + _PAUSES[0] and not self._is_list_due():
                    await asyncio.sleep(_PAUSES[1])  # some proxies close every watch at once
            except (ApiError, AwayError) as error:
                version = ""
                if not (isinstance(error, ApiError) and error.status == 410):
                    if not away:
                        away = time.monotonic()
                        self._say(f"the Kubernetes API is away ({error}); the replicas go on")
                    await asyncio.sleep(pause)
                    pause = min(2 * pause, _PAUSES[1])

    def _is_list_due(self) -> bool:
        return self._listed < max(self._list_by, time.monotonic() - RESYNC_SECONDS)

    async def _list(self) -> str:
        """Process all current pods; returns the version from which to watch."""
        began, self._listed = time.time(), time.monotonic()
        there: set[ReplicaName] = set()
        version = ""
        async for pods, version in self._cluster.pages("Pod", labels=self._labels):  # noqa: B007
            there.update(name for pod in pods if (name := self._take(pod, False)) is not None)
        self._taken_all(there, began)
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
