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
from aerotrain.contract.job import Job
from aerotrain.contract.replicas import ReplicaName
from aerotrain.contract.status import Observation, State
from aerotrain.launch.backend import Emit, Report, RetryLaterError
from aerotrain.launch.controller import Ended, GroupObservation, Restart
from aerotrain.launch.restart_policy import History
from aerotrain_airflow.kubernetes.access import errors_translated
from aerotrain_airflow.kubernetes.cluster import ApiError, Cluster, UnavailableError, together
from aerotrain_airflow.kubernetes.identity import CONTAINER, JOB_LABEL, Handle, uid_of
from aerotrain_airflow.kubernetes.kueue import queue_of
from aerotrain_airflow.kubernetes.lifecycle import restart_pod, restore_shared
from aerotrain_airflow.kubernetes.logs import PodLogs
from aerotrain_airflow.kubernetes.observed import ObservedGroup
from aerotrain_airflow.kubernetes.owner import EventLog
from aerotrain_airflow.kubernetes.states import created_at

Manifest = Mapping[str, Any]

#: Seconds between two questions to the queue why it does not admit the group, and two checks
#: that what all pods need is there. A restart checks it, too.
_ASK_QUEUE_EVERY, _RESTORE_EVERY = 20.0, 300.0

#: The number of failed replicas to explain, and of lines of each failed side-car.
_EXPLAINED, _LAST_LINES = 5, 20

#: Seconds per watch: a dead connection is noticed after this time.
WATCH_SECONDS = 60

#: Seconds between two lists of all pods, which find what a watch may have missed.
RESYNC_SECONDS = 300

#: Seconds between two retries while the API is unavailable, first and at most.
_PAUSES = (0.5, 5.0)


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
        say: Report,
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
                opened = time.monotonic()
                version = await self._follow(version)
                if time.monotonic() < opened + _PAUSES[0] and not self._is_list_due():
                    await asyncio.sleep(_PAUSES[1])  # some proxies close every watch at once
            except (ApiError, UnavailableError) as error:
                version = ""
                if isinstance(error, ApiError) and error.status == 410:
                    continue  # the version is too old
                if not away:
                    away = time.monotonic()
                    self._say(
                        f"the Kubernetes API is away, or this process was stopped ({error}); the "
                        "replicas continue"
                    )
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


class PodGroup:
    """The group with this ``owner``; a context in which it is watched for ``holder``."""

    def __init__(
        self, cluster: Cluster, owner: Manifest, holder: str, emit: Emit, say: Report
    ) -> None:
        self._cluster = cluster
        self._say = say
        self.job = Job.from_json(owner["data"]["job.json"])
        self.created = created_at(owner)
        self._handle = Handle.of(owner)
        self._queue = queue_of(owner)
        self._changed = asyncio.Event()
        self._error: BaseException | None = None
        self._logs = PodLogs(cluster, owner, self.job.names(), emit, self._spawn)
        self._log = EventLog(cluster, owner, holder)
        self._observed = ObservedGroup(
            self.job.names(), self._handle, self._restarts, is_gated=self._queue.is_gate
        )

    async def __aenter__(self) -> Self:
        labels = f"{JOB_LABEL}={self._handle.name}"
        self._watch = PodWatch(self._cluster, labels, self._take, self._took_all, self._say)
        background = [self._watch.run(), self._restore()]
        if self._queue.is_gate:
            background.append(self._say_why_it_is_queued())
        self._watching = [self._spawn(each) for each in background]
        return self

    async def __aexit__(self, *error: object) -> None:
        for task in self._watching:
            task.cancel()
        await self._logs.close()

    @property
    def events(self) -> Sequence[Event]:
        return self._log.events

    async def observe(self, seconds: float, *, look_again: bool = False) -> GroupObservation:
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
        return GroupObservation(self._observed.seen, self._observed.looked)

    async def append(self, events: Sequence[Event]) -> bool:
        """Append to the event log in the owner, unless another follower has."""
        async with errors_translated(self._cluster):
            return await self._log.append(events)

    async def restart(self, restart: Restart) -> None:
        """Restart the pods of these replicas with these restart counts."""
        # Before the first await: another follower may be faster, and its pods already running then.
        self._observed.creating(restart.counts, time.time())
        await self._logs.restart(restart.counts)
        try:
            async with errors_translated(self._cluster):
                await restore_shared(self._cluster, self._handle, self.job)
                await together(
                    restart_pod(self._cluster, self._handle, name, restart)
                    for name in restart.counts
                )
        except RetryLaterError:
            self._observed.not_created(restart.counts)
            raise
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
        replicas, name = self._observed.replicas, self._observed.replica_of(pod)
        before = replicas[name].seen if name in replicas else None
        if name is None or self._observed.take(pod, gone=gone) is None:
            return None
        now = replicas[name].seen
        if now != before:
            self._say_change(name, before, now)
            self._changed.set()
        if not gone:
            pod_name, began = pod["metadata"]["name"], _has_begun(pod)
            self._logs.follow(name, pod_name, began=began, ended=now.state.ended)
        return name

    def _say_change(self, name: ReplicaName, before: Observation | None, now: Observation) -> None:
        """Say why a replica waits, or what is wrong with its node; its end is said elsewhere."""
        was = before.reason if before is not None and not before.state.ended else ""
        if not now.state.ended and now.reason not in ("", was):
            self._say(f"{name} {now.reason}")
        elif was and not now.reason and before and before.state is now.state is State.RUNNING:
            self._say(f"{name} is on a node that is ready again")

    async def _say_why_it_is_queued(self) -> None:
        """Say what the queue says about this group while it does not admit it."""
        said = ""
        while True:
            await asyncio.sleep(_ASK_QUEUE_EVERY)
            if not self._observed.is_queued:
                said = ""
                continue
            with suppress(ApiError, UnavailableError):
                reason = await self._queue.why_not_admitted(self._cluster)
                if reason not in ("", said):
                    self._say(f"Kueue does not admit {self._handle.name}: {reason}")
                    said = reason

    async def _restore(self) -> None:
        while True:
            await asyncio.sleep(_RESTORE_EVERY)
            with suppress(ApiError, UnavailableError):  # the next check may be more fortunate
                await restore_shared(self._cluster, self._handle, self.job)

    def _took_all(self, there: set[ReplicaName], began: float) -> None:
        self._observed.looked_at_all(there, began)
        self._changed.set()

    async def _explain_causes(self, ended: Ended) -> None:
        """Log what the cluster says of the replicas that caused the end, and of their side-cars."""
        for name in ended.causes[:_EXPLAINED]:
            status = self._observed.replicas[name]
            pod, uid = status.pod, status.uid
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
            except ApiError as error:
                self._say(f"no more can be said of {pod}: {error}")
            except UnavailableError as error:
                self._say(f"no more can be said of the replicas: {error}")
                return

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
                    pod["metadata"]["name"], container=each["name"], tail=_LAST_LINES
                )
                async for _, line in log:
                    self._say(f"{name} {each['name']}: {line}")


def _has_begun(pod: Manifest) -> bool:
    """Whether the replica's container has run, so that it has a log."""
    return any(
        status["name"] == CONTAINER and status["state"].keys() & {"running", "terminated"}
        for status in pod["status"].get("containerStatuses") or ()
    )
