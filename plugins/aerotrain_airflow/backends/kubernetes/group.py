"""A group of pods, as a follower sees it: a watch, occasional lists, and the logs.

A follower only needs the group's handle and reads everything else from the cluster. So another one,
in another process, can continue where the last one stopped.
"""

import asyncio
import time
from collections.abc import Coroutine, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from typing import Any, Self

from aerotrain.contract.event_log import Event
from aerotrain.contract.job import Job, ReplicaName
from aerotrain.contract.status import State
from aerotrain_airflow.backends.base import Emit, GoneError, Say
from aerotrain_airflow.backends.kubernetes.address import CONTAINER, JOB_LABEL, Address
from aerotrain_airflow.backends.kubernetes.cluster import ApiError, AwayError, Cluster
from aerotrain_airflow.backends.kubernetes.identity import is_at, uid_of
from aerotrain_airflow.backends.kubernetes.logs import PodLogs
from aerotrain_airflow.backends.kubernetes.observed import ObservedSet
from aerotrain_airflow.backends.kubernetes.renewal import EventLog, Renewal
from aerotrain_airflow.backends.kubernetes.states import created_at
from aerotrain_airflow.backends.kubernetes.watching import PodWatch
from aerotrain_airflow.controller.decision import Ended, Look, Restart
from aerotrain_airflow.controller.history import History

Manifest = Mapping[str, Any]

#: The number of failed replicas to explain, and of lines of each failed side-car.
_EXPLAINED, _LAST_LINES = 5, 20


class PodGroup:
    """The group whose ``owner`` is at ``address``; a context in which it is watched."""

    def __init__(
        self, cluster: Cluster, address: Address, owner: Manifest, emit: Emit, say: Say
    ) -> None:
        self._cluster = cluster
        self._say = say
        self.job = Job.from_json(owner["data"]["job.json"])
        self.created = created_at(owner)
        self._address = replace(address, uid=uid_of(owner))
        self._changed = asyncio.Event()
        self._broken: BaseException | None = None
        self._ignored: set[str] = set()  # pods of others
        self._logs = PodLogs(cluster, self._address, emit, self._spawn)
        self._logs.go_on_from(owner, self.job.names())
        self._log = EventLog(cluster, owner)
        self._renewal = Renewal(cluster, self._address, owner)
        pods = {self._address.pod(name): name for name in self.job.names()}
        self._observed = ObservedSet(pods, uid_of(owner), self._restarts)
        labels = f"{JOB_LABEL}={self._address.name}"
        self._watch = PodWatch(cluster, labels, self._take, self._taken_all, self._say)

    @classmethod
    async def find(cls, cluster: Cluster, address: Address, emit: Emit, say: Say) -> Self:
        """The group at ``address``.

        Raises:
            GoneError: it does not exist.
        """
        owner = await cluster.get("ConfigMap", address.name)
        if owner is None or not is_at(owner, address):
            raise GoneError(
                f"the set {address} is gone: its ConfigMap was deleted by hand, or another try "
                "of the task has replaced it"
            )
        return cls(cluster, address, owner, emit, say)

    async def __aenter__(self) -> Self:
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
        while self._observed.looked is None and self._broken is None:
            self._changed.clear()
            await self._changed.wait()
        self._changed.clear()
        if self._broken is not None:
            raise self._broken
        assert self._observed.looked is not None  # otherwise _broken is set
        return Look(self._observed.seen, self._observed.looked)

    async def append(self, events: Sequence[Event]) -> bool:
        """Append to the event log in the owner, unless another follower has."""
        return await self._log.append(events)

    async def restart(self, restart: Restart) -> None:
        """Restart the pods of these replicas with these restart counts."""
        # Before the first await: another follower may be faster, and its pods already running then.
        self._observed.making(restart.counts, time.time())
        await self._logs.begin_anew(restart.counts)
        await asyncio.gather(*(self._renewal.renew(name, restart) for name in restart.counts))
        self._observed.made(restart.counts, time.time())

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
                self._broken = task.exception()
                self._changed.set()

        task = asyncio.create_task(work)
        task.add_done_callback(done)
        return task

    def _take(self, pod: Manifest, gone: bool) -> ReplicaName | None:
        if not self._observed.is_own(pod):
            self._ignore(pod["metadata"]["name"])
            return None
        change = self._observed.take(pod, gone=gone)
        if change is None:
            return None
        name, now = change.name, change.now.seen
        before = change.before.seen if change.before else None
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
                f"the pod {pod} has the label {JOB_LABEL} of {self._address.name} and is none "
                "of its replicas; it is ignored"
            )

    def _taken_all(self, there: set[ReplicaName], began: float) -> None:
        self._observed.looked_at_all(there, began)
        self._changed.set()

    async def _explain_causes(self, ended: Ended) -> None:
        """Log what the cluster says of the replicas that caused the end, and of their side-cars."""
        for name in ended.causes[:_EXPLAINED]:
            pod, uid = self._address.pod(name), self._observed.replicas[name].uid
            if not uid:
                continue  # its pod was never observed
            try:
                events, _ = await self._cluster.list("Event", fields=f"involvedObject.uid={uid}")
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
                    self._address.pod(name), container=each["name"], tail=_LAST_LINES
                )
                async for _, line in log:
                    self._say(f"{name} {each['name']}: {line}")


def _has_begun(pod: Manifest) -> bool:
    """Whether the replica's container has run, so that it has a log."""
    return any(
        status["name"] == CONTAINER and status["state"].keys() & {"running", "terminated"}
        for status in pod["status"].get("containerStatuses") or ()
    )
