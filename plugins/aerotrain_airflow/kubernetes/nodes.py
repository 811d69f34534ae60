"""The nodes of a cluster that are about to leave, watched once for all groups of an event loop.

It needs permissions for nodes, which no Role of a namespace can give (``deploy/nodes.yaml``).
Without them no node seems to leave: its pods end when they are evicted, or with it.
"""

import asyncio
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager, suppress
from typing import Any

from aerotrain_airflow.kubernetes.cluster import ApiError, Cluster, UnavailableError
from aerotrain_airflow.kubernetes.spot import notice_of

#: As in ``aerotrain_airflow.kubernetes.access``.
PERMISSIONS = (("list", "", "nodes"), ("watch", "", "nodes"))

#: Seconds per watch, between two of them, and until nodes are listed again after a failure.
_WATCH_SECONDS, _BETWEEN, _PAUSE = 300, 0.5, 15.0


class _Nodes:
    """The notices of all nodes: by node, the taint that says that it is about to leave."""

    def __init__(self, conn_id: str) -> None:
        self._conn_id = conn_id
        self.notices: dict[str, str] = {}
        self.listeners: set[Callable[[], None]] = set()

    async def watch(self) -> None:
        async with Cluster(self._conn_id, "", retry_for=0) as cluster:
            while True:
                with suppress(ApiError, UnavailableError):
                    for verb, group, resource in PERMISSIONS:
                        if not await cluster.may(verb=verb, group=group, resource=resource):
                            return
                    await self._follow(cluster)
                await asyncio.sleep(_PAUSE)

    async def _follow(self, cluster: Cluster) -> None:
        """Take all nodes, and then every change of one, until the API fails."""
        version, there = "", set()
        async for nodes, version in cluster.pages("Node"):  # noqa: B007
            there |= {self._take(node) for node in nodes}
        self.notices = {name: taint for name, taint in self.notices.items() if name in there}
        while True:
            events = cluster.watch("Node", labels="", version=version, seconds=_WATCH_SECONDS)
            async for event in events:
                version = event["object"]["metadata"]["resourceVersion"]
                if event["type"] != "BOOKMARK":
                    self._take(event["object"], gone=event["type"] == "DELETED")
            await asyncio.sleep(_BETWEEN)

    def _take(self, node: Mapping[str, Any], *, gone: bool = False) -> str:
        """Process a node in its current state; returns its name."""
        name: str = node["metadata"]["name"]
        before, taint = self.notices.pop(name, ""), "" if gone else notice_of(node)
        if taint:
            self.notices[name] = taint
        if taint not in ("", before):
            for notify in self.listeners:
                notify()
        return name


#: Those that are watched, and the task that does so, by event loop and connection.
_watched: dict[tuple[asyncio.AbstractEventLoop, str], tuple[_Nodes, asyncio.Task[None]]] = {}


@asynccontextmanager
async def leaving_nodes(
    conn_id: str, notify: Callable[[], None]
) -> AsyncIterator[Callable[[str], str]]:
    """Watch the nodes of a cluster, and call ``notify`` each time that one more is about to leave.

    Yields a function that returns the taint which says so of a node; empty if none does.
    """
    key = asyncio.get_running_loop(), conn_id
    if key not in _watched:
        made = _Nodes(conn_id)
        _watched[key] = made, asyncio.create_task(made.watch())
    nodes, task = _watched[key]
    nodes.listeners.add(notify)
    try:
        yield lambda node: nodes.notices.get(node, "")
    finally:
        nodes.listeners.discard(notify)
        if not nodes.listeners:
            del _watched[key]
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)
