"""A group of pods, as a follower sees it: a watch, an occasional list, and the logs.

A follower only needs the group's handle and reads everything else from the cluster. So another one,
in another process, can continue where the last one stopped.
"""

import asyncio
import time
from collections.abc import Callable, Coroutine, Mapping, Sequence
from contextlib import aclosing, suppress
from typing import Any, Self

from aerotrain.contract.errors import backoff
from aerotrain.contract.event_log import Event
from aerotrain.contract.job import Job, ReplicaName
from aerotrain.contract.status import State
from aerotrain_airflow.backends.base import Emit, Say
from aerotrain_airflow.backends.kubernetes.cluster import ApiError, AwayError, Cluster, together
from aerotrain_airflow.backends.kubernetes.identity import CONTAINER, JOB_LABEL, Handle, uid_of
from aerotrain_airflow.backends.kubernetes.lifecycle import restart_pod
from aerotrain_airflow.backends.kubernetes.logs import PodLogs
from aerotrain_airflow.backends.kubernetes.observed import ObservedGroup
from aerotrain_airflow.backends.kubernetes.owner import EventLog, read_owner
from aerotrain_airflow.backends.kubernetes.states import created_at
from aerotrain_airflow.controller.decision import Ended, Look, Restart
from aerotrain_airflow.controller.history import History

Manifest = Mapping[str, Any]

#: Seconds per watch: a dead connection is noticed after this time.
WATCH_SECONDS = 60

#: Seconds between two lists of all pods, which find what a watch may have missed.
RESYNC_SECONDS = 300

#: Seconds between two retries while the API is unavailable, first and at most.
_PAUSES = (0.5, 5.0)

#: The number of failed replicas to explain, and of lines of each failed side-car.
_EXPLAINED, _LAST_LINES = 5, 20


class PodGroup:
    """The group with this ``owner``; a context in which it is watched."""

    def __init__(self, cluster: Cluster, owner: Manifest, emit: Emit, say: Say) -> None:
        self._cluster = cluster
        self._say = say
        self.job = Job.from_json(owner["data"]["job.json"])
        self.created = created_at(owner)
        self._handle = Handle.of(owner)
        self._changed = asyncio.Event()
        self._error: BaseException | None = None
        self._ignored: set[str] = set()  # pods of others
        self._logs = PodLogs(cluster, owner, self.job.names(), emit, self._spawn)
        self._log = EventLog(cluster, owner)
        self._observed = ObservedGroup(self.job.names(), self._handle, self._restarts)

    @classmethod
    async def find(cls, cluster: Cluster, handle: Handle, emit: Emit, say: Say) -> Self:
        """The group with this handle.

        Raises:
            GoneError: it does not exist.
        """
        return cls(cluster, await read_owner(cluster, handle), emit, say)

    async def __aenter__(self) -> Self:
        labels = f"{JOB_LABEL}={self._handle.name}"
        self._watch = PodWatch(self._cluster, labels, self._take, self._took_all, self._say)
        self._watching = self._spawn(self._watch.run())
        return self

    async def __aexit__(self, *error: object) -> None:
        self._watching.cancel()
        await self._logs.close()

    @property
    def events(self) -> Sequence[Event]:
        return self._log.events

    async def observe(self, seconds: float, *, look_again: bool = False) -> Look:
        """Wait for a change of a pod, at most ``seconds``, but until all were observed once."""
        if look_again:
            self._watch.look_again()
        with suppress(TimeoutError):
            async with asyncio.timeout(None if seconds == float("inf") else seconds):
                await self._changed.wait()
        while self._observed.looked is None and self._error is None:
            self._changed.clear()
            await self._changed.wait()
        self._changed.clear()
        if self._error is not None:
            raise self._error
        assert self._observed.looked is not None  # otherwise _error is set
        return Look(self._observed.seen, self._observed.looked)

    async def append(self, events: Sequence[Event]) -> bool:
        """Append to the event log in the owner, unless another follower has."""
        return await self._log.append(events)

    async def restart(self, restart: Restart) -> None:
        """Restart the pods of these replicas with these restart counts."""
        # Before the first await: another follower may be faster, and its pods already running then.
        self._observed.creating(restart.counts, time.time())
        await self._logs.restart(restart.counts)
        await together(
            restart_pod(self._cluster, self._handle, name, restart) for name in restart.counts
        )
        self._observed.created(restart.counts, time.time())

    async def finish(self, ended: Ended) -> None:
        """Emit the last lines, and the cluster's messages on the replicas that failed."""
        await self._logs.finish()
        if ended.state is not State.SUCCEEDED:
            await self._explain_causes(ended)

    def _restarts(self, name: ReplicaName) -> int:
        return History.of(name, self.events).restarts

    def _spawn(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        """Run ``work`` in the background; its failure is raised by ``observe``."""

        def done(task: asyncio.Task[None]) -> None:
            if not task.cancelled() and task.exception() is not None:
                self._error = task.exception()
                self._changed.set()

        task = asyncio.create_task(work)
        task.add_done_callback(done)
        return task

    def _take(self, pod: Manifest, gone: bool) -> ReplicaName | None:
        name = self._observed.replica_of(pod)
        if name is None:
            self._ignore(pod["metadata"]["name"])
            return None
        known = self._observed.replicas.get(name)
        before = known.seen if known else None
        if self._observed.take(pod, gone=gone) is None:
            return None
        now = self._observed.replicas[name].seen
        if now != before:
            if now.state is State.PENDING and now.reason not in ("", before and before.reason):
                self._say(f"{name} {now.reason}")
            self._changed.set()
        if not gone:
            self._logs.follow(name, now, began=_has_begun(pod))
        return name

    def _ignore(self, pod: str) -> None:
        if pod not in self._ignored:
            self._ignored.add(pod)
            self._say(
                f"the pod {pod} has the label {JOB_LABEL} of {self._handle.name} and is none "
                "of its replicas; it is ignored"
            )

    def _took_all(self, there: set[ReplicaName], began: float) -> None:
        self._observed.looked_at_all(there, began)
        self._changed.set()

    async def _explain_causes(self, ended: Ended) -> None:
        """Log what the cluster says of the replicas that caused the end, and of their side-cars."""
        for name in ended.causes[:_EXPLAINED]:
            pod, uid = self._handle.pod(name), self._observed.replicas[name].uid
            if not uid:
                continue  # its pod was never observed
            try:
                events = await self._cluster.list("Event", fields=f"involvedObject.uid={uid}")
                for event in events:
                    if event.get("type") == "Warning":
                        self._say(f"{name} {event.get('reason')}: {event.get('message')}")
                there = await self._cluster.get("Pod", pod)
                if there is not None and uid_of(there) == uid:
                    await self._explain_side_cars(name, there)
            except (ApiError, AwayError) as error:
                self._say(f"no more can be said of {pod}: {error}")

    async def _explain_side_cars(self, name: ReplicaName, pod: Manifest) -> None:
        """Log the last lines of the side-cars that have failed."""
        status = pod["status"]
        for each in (
            *(status.get("initContainerStatuses") or ()),
            *(status.get("containerStatuses") or ()),
        ):
            ended = each["state"].get("terminated") or {}
            if each["name"] != CONTAINER and ended.get("exitCode"):
                log = self._cluster.log(
                    self._handle.pod(name), container=each["name"], tail=_LAST_LINES
                )
                async for _, line in log:
                    self._say(f"{name} {each['name']}: {line}")


def _has_begun(pod: Manifest) -> bool:
    """Whether the replica's container has run, so that it has a log."""
    return any(
        status["name"] == CONTAINER and status["state"].keys() & {"running", "terminated"}
        for status in pod["status"].get("containerStatuses") or ()
    )


class PodWatch:
    """Reports every change of the pods with these ``labels``, across failures of the API.

    ``take`` gets each pod, and whether it is gone, and returns its replica if it is one of the
    group. ``took_all`` gets the replicas whose pods were in a complete list, and when that began.
    ``say`` gets messages about the API.
    """

    def __init__(
        self,
        cluster: Cluster,
        labels: str,
        take: Callable[[Manifest, bool], ReplicaName | None],
        took_all: Callable[[set[ReplicaName], float], None],
        say: Say,
    ) -> None:
        self._cluster = cluster
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
            try:
                if not version or self._is_list_due():
                    version = await self._list()
                if away:
                    self._say(f"the Kubernetes API is back after {time.monotonic() - away:.0f} s")
                    away, pauses = 0.0, backoff(*_PAUSES)
                began = time.monotonic()
                version = await self._follow(version)
                if time.monotonic() < began + _PAUSES[0] and not self._is_list_due():
                    await asyncio.sleep(_PAUSES[1])  # some proxies close every watch at once
            except (ApiError, AwayError) as error:
                version = ""
                if not (isinstance(error, ApiError) and error.status == 410):
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
