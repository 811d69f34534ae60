"""A group of pods, as a follower sees it: a watch, an occasional list, and the logs.

A follower only needs the group's handle and reads everything else from the cluster. So another one,
in another process, can continue where the last one stopped. Decisions are recorded in the event log
before they are carried out: the next follower completes what a killed one has begun, and of two
followers one decides.
"""

import asyncio
import time
from collections.abc import Coroutine, Mapping, Sequence
from contextlib import aclosing, suppress
from typing import Any, Self

from aerotrain.contract.errors import backoff
from aerotrain.contract.event_log import Event
from aerotrain.contract.job import Job
from aerotrain.contract.replicas import ReplicaName
from aerotrain.contract.status import Observation, State
from aerotrain.launch.backend import Emit, GroupGoneError, Report
from aerotrain.launch.decision import Ended, GroupObservation, Restart
from aerotrain.launch.restart_policy import restart_counts
from aerotrain.launch.size import Size
from aerotrain_airflow.kubernetes.cluster import (
    ApiError,
    Cluster,
    UnavailableError,
    together,
)
from aerotrain_airflow.kubernetes.identity import (
    HOLDER,
    JOB_LABEL,
    Handle,
    annotations,
    pod_name,
    uid_of,
)
from aerotrain_airflow.kubernetes.kueue import Kueue, queue_of
from aerotrain_airflow.kubernetes.lifecycle import (
    events_of,
    log_data,
    read_owner,
    restart_pods,
    restore_shared,
)
from aerotrain_airflow.kubernetes.logs import PodLogs
from aerotrain_airflow.kubernetes.nodes import leaving_nodes
from aerotrain_airflow.kubernetes.observed import ObservedGroup
from aerotrain_airflow.kubernetes.spot import OUT_OF_SERVICE
from aerotrain_airflow.kubernetes.states import created_at

Manifest = Mapping[str, Any]

#: Seconds between two questions to the queue why it does not admit the group.
_ASK_QUEUE_EVERY = 20.0

#: The number of failed replicas to explain.
_EXPLAINED = 5

#: Seconds per watch: a dead connection is noticed after this time.
WATCH_SECONDS = 60

#: Seconds between two lists of all pods, which find what a watch may have missed.
RESYNC_SECONDS = 300

#: Seconds between two retries while the API is unavailable, first and at most.
_PAUSES = (0.5, 5.0)


class PodGroup:
    """The group with this ``owner``; a context in which it is watched for ``holder``."""

    def __init__(
        self, cluster: Cluster, owner: Manifest, holder: str, emit: Emit, say: Report
    ) -> None:
        self._cluster = cluster
        self._say = say
        self._holder = holder
        self.job = Job.from_json(owner["data"]["job.json"])
        self.created = created_at(owner)
        self._handle = Handle.of(owner)
        self._queue = queue_of(owner)
        self._changed = asyncio.Event()
        self._noticed = asyncio.Event()  # a node may be about to leave
        self._error: BaseException | None = None
        self._take_owner(owner)
        self._logs = PodLogs(cluster, owner, self.job.names(), emit, self._spawn)
        self._observed = ObservedGroup(
            self.job.names(),
            self._handle,
            lambda name: self._restarts.get(str(name), 0),
            is_gated=self._queue is not None,
        )
        # By time.monotonic(): when the last list of all pods began, and how old it may be.
        self._listed = self._list_since = float("-inf")
        self._open: asyncio.Timeout | None = None  # of the watch that is open

    async def __aenter__(self) -> Self:
        self._watching = [self._spawn(self._watch())]
        if self._queue is not None:
            self._watching.append(self._spawn(self._say_why_it_is_queued(self._queue)))
        if any(replica.spot for replica in self.job.replicas):
            self._watching.append(self._spawn(self._heed_notices()))
        return self

    async def __aexit__(self, *error: object) -> None:
        for task in self._watching:
            task.cancel()
        await self._logs.close()

    async def observe(self, seconds: float, *, look_again: bool = False) -> GroupObservation:
        """Wait for a change of a pod, at most ``seconds``, but until all were observed once."""
        if look_again:
            self._look_again()
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
        """Append to the event log in the owner; False if another follower has added events.

        Raises:
            GroupGoneError: the group no longer exists, or another task try holds it.
        """
        if self._held_by != self._holder:
            raise GroupGoneError(f"{self._handle.name} was taken over by another try of its task")
        name, uid, known = self._handle.name, self._handle.uid, self.events
        data = log_data([*known, *events])
        while events:
            try:
                owner = await self._cluster.patch("ConfigMap", name, uid, self._version, data=data)
            except ApiError as error:
                if error.status not in (404, 409):
                    raise
                self._take_owner(await read_owner(self._cluster, self._handle))
                if self.events != known:
                    return False
            else:
                self._take_owner(owner)
                return True
        return True

    def _take_owner(self, owner: Manifest) -> None:
        self._held_by = annotations(owner)[HOLDER]
        self._version = owner["metadata"]["resourceVersion"]
        self.events = events_of(owner)
        self._restarts = restart_counts(self.events)

    async def restart(self, restart: Restart) -> None:
        """Restart the pods of these replicas with these restart counts, and end those of others.

        Raises:
            NoRoomError: a quota has no room for one; the others are restarted.
        """
        await self._logs.restart(restart.counts)
        if restart.counts:
            await restore_shared(self._cluster, self._handle, self.job)
        size, known = Size.of(self.job, self.events), self._restarts
        for name, pod in await restart_pods(self._cluster, self._handle, restart, known, size):
            if self._observed.replicas[name].uid != uid_of(pod):  # else it is seen already
                self._take(pod)

    async def finish(self, ended: Ended) -> None:
        """Emit the last lines, and the cluster's messages on the replicas that failed."""
        await self._logs.finish()
        if ended.state is not State.SUCCEEDED:
            await self._explain_causes(ended)

    def _look_again(self) -> None:
        """List all pods immediately, instead of waiting for a change."""
        self._list_since = time.monotonic()
        if self._open is not None:
            self._open.reschedule(asyncio.get_running_loop().time())
            self._open = None  # once is enough

    def _is_list_due(self) -> bool:
        return self._listed < max(self._list_since, time.monotonic() - RESYNC_SECONDS)

    async def _watch(self) -> None:
        """Take every change of the pods until cancelled, across failures of the API."""
        version, pauses, away = "", backoff(*_PAUSES), 0.0
        while True:
            try:
                if not version or self._is_list_due():
                    version = await self._take_all()
                if away:
                    self._say(f"the Kubernetes API is back after {time.monotonic() - away:.0f} s")
                    away, pauses = 0.0, backoff(*_PAUSES)
                opened = time.monotonic()
                version = await self._take_changes(version)
                if time.monotonic() < opened + _PAUSES[0] and not self._is_list_due():
                    await asyncio.sleep(_PAUSES[1])  # some proxies close every watch at once
            except (ApiError, UnavailableError) as error:
                version = ""
                if isinstance(error, ApiError) and error.status == 410:
                    continue  # the version is too old
                if not away:
                    away = time.monotonic()
                    self._say(
                        "the Kubernetes API is away, or this process was stopped; the replicas "
                        f"continue ({error})"
                    )
                await asyncio.sleep(next(pauses))

    async def _take_all(self) -> str:
        """Take all pods; returns the version from which to watch."""
        began, self._listed = time.time(), time.monotonic()
        version = ""
        async for pods, version in self._cluster.pages("Pod", labels=self._labels):  # noqa: B007
            for pod in pods:
                self._take(pod)
        self._observed.looked_at_all(began)
        self._changed.set()
        self._noticed.set()
        return version

    async def _take_changes(self, version: str) -> str:
        """Take changes until the watch ends or a list is due; returns the last version."""
        events = self._cluster.watch(
            "Pod", labels=self._labels, version=version, seconds=WATCH_SECONDS
        )
        try:
            async with asyncio.timeout(None) as self._open, aclosing(events):
                async for event in events:
                    version = event["object"]["metadata"]["resourceVersion"]
                    if event["type"] != "BOOKMARK":
                        self._take(event["object"], gone=event["type"] == "DELETED")
        except TimeoutError:
            pass
        finally:
            self._open = None
        return version

    @property
    def _labels(self) -> str:
        return f"{JOB_LABEL}={self._handle.name}"

    def _spawn(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        """Run ``work`` in the background; its failure is raised by ``observe``."""

        def done(task: asyncio.Task[None]) -> None:
            if not task.cancelled() and task.exception() is not None:
                self._error = task.exception()
                self._changed.set()

        task = asyncio.create_task(work)
        task.add_done_callback(done)
        return task

    def _take(self, pod: Manifest, *, gone: bool = False) -> None:
        replicas, name = self._observed.replicas, self._observed.replica_of(pod)
        before = replicas[name].seen if name in replicas else None
        if name is None or self._observed.take(pod, gone=gone) is None:
            return
        now = replicas[name].seen
        if now != before:
            self._say_change(name, before, now)
            self._changed.set()
        if not gone:
            began = replicas[name].started is not None
            self._logs.follow(name, pod["metadata"]["name"], began=began, ended=now.state.ended)

    def _say_change(self, name: ReplicaName, before: Observation | None, now: Observation) -> None:
        """Say why a replica waits, or what is wrong with its node; its end is said elsewhere."""
        was = before.reason if before is not None and not before.state.ended else ""
        if not now.state.ended and now.reason not in ("", was):
            self._say(f"{name} {now.reason}")
        elif was and not now.reason and before and before.state is now.state is State.RUNNING:
            self._say(f"{name} is on a node that is ready again")

    async def _say_why_it_is_queued(self, queue: Kueue) -> None:
        """Say what the queue says about this group while it does not admit it."""
        said = ""
        while True:
            await asyncio.sleep(_ASK_QUEUE_EVERY)
            if not self._observed.is_queued:
                said = ""
                continue
            with suppress(ApiError, UnavailableError):
                reason = await queue.why_not_admitted(self._cluster)
                if reason not in ("", said):
                    self._say(f"Kueue does not admit {self._handle.name}: {reason}")
                    said = reason

    async def _heed_notices(self) -> None:
        """Delete the pods on nodes that are about to leave: each saves, and restarts elsewhere."""
        async with leaving_nodes(self._cluster.conn_id, self._noticed.set) as notice:
            self._observed.notice = notice
            while True:
                await self._noticed.wait()
                self._noticed.clear()
                found = self._observed.on_leaving_nodes()
                await together(self._leave(name, taint) for name, taint in found.items())

    async def _leave(self, name: ReplicaName, taint: str) -> None:
        replica = self._observed.replicas[name]
        self._say(
            f"{name} is on the node {replica.seen.node}, which is about to leave (taint {taint}): "
            "its pod is deleted, so that it saves, and is restarted elsewhere"
        )
        pod = pod_name(self._handle.name, name, replica.seen.restarts or 0)
        with suppress(ApiError, UnavailableError):  # after the next list of pods it is tried again
            force = taint == OUT_OF_SERVICE
            await self._cluster.delete("Pod", pod, replica.uid, force=force)

    async def _explain_causes(self, ended: Ended) -> None:
        """Log what the cluster says of the replicas that caused the end."""
        for name in ended.causes[:_EXPLAINED]:
            uid = self._observed.replicas[name].uid
            if not uid:
                continue  # its pod was never observed
            try:
                events = await self._cluster.list("Event", fields=f"involvedObject.uid={uid}")
            except (ApiError, UnavailableError) as error:
                self._say(f"no more can be said of {name}: {error}")
                continue
            for event in events:
                if event.get("type") == "Warning":
                    self._say(f"{name} {event.get('reason')}: {event.get('message')}")
