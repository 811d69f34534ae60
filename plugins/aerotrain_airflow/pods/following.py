"""One set of pods, followed to its end: one watch, one list now and then, and the logs.

A follower knows the set's address and finds all else in the cluster, so that whoever starts it
anew, in another process, goes on where the last one stopped.
"""

import asyncio
import time
from collections.abc import Callable, Coroutine, Mapping
from datetime import datetime
from typing import Any

from aerotrain.contract.job import Job, ReplicaName
from aerotrain.contract.status import Observation, State, job_state
from aerotrain_airflow.launchers.base import Ended, LogLine, job_ended
from aerotrain_airflow.pods.address import (
    ATTEMPT,
    CONTAINER,
    JOB_LABEL,
    Address,
    annotations,
    replica_of,
)
from aerotrain_airflow.pods.cluster import ApiError, AwayError, Cluster
from aerotrain_airflow.pods.logs import PodLogs
from aerotrain_airflow.pods.states import observe_pod

Emit = Callable[[LogLine], None]
Say = Callable[[str], None]

#: Seconds of one watch: a connection that died in silence is noticed after as long.
WATCH_SECONDS = 60

#: Seconds between two lists of all pods, which find what a watch may have missed.
RESYNC_SECONDS = 300

#: Replicas of which more is told when the job failed, and lines of each failed side-car.
_TOLD_CAUSES, _LAST_LINES = 5, 20

#: Seconds between two tries to reach an API that is away, the shortest and the longest.
_PAUSES = (0.5, 5.0)


class Following:
    """Follows the set at ``address`` until its job has ended.

    ``emit`` gets every line that a replica wrote, once; ``say`` gets what there is to tell of
    the set itself. ``until`` is a time of ``time.time()`` by which the caller's own deadline
    has passed; the job's deadlines are found in the set.
    """

    def __init__(
        self, cluster: Cluster, address: Address, *, emit: Emit, say: Say, until: float | None
    ) -> None:
        self._cluster = cluster
        self._address = address
        self._say = say
        self._until = until
        self._logs = PodLogs(cluster, address, emit, self._spawn)
        self._seen: dict[ReplicaName, Observation] = {}
        self._changed = asyncio.Event()
        self._broken: BaseException | None = None

    async def run(self) -> Ended:
        """Wait for the end of the job, and say how it was."""
        owner = await self._cluster.get("ConfigMap", self._address.name)
        if owner is None or annotations(owner).get(ATTEMPT) != self._address.attempt:
            return Ended(
                state=State.LOST,
                reason=f"the set {self._address} is gone: its ConfigMap was deleted by hand, or "
                "another try of the task has replaced it",
            )
        job = Job.from_json(owner["data"]["job.json"])
        self._seen = {name: Observation(state=State.PENDING) for name in job.names()}
        self._logs.go_on_from(owner, self._seen)
        watching = self._spawn(self._watch())
        try:
            ended = await self._end_of(job, born=_time(owner["metadata"]["creationTimestamp"]))
            await self._logs.finish()
            if ended.state is not State.SUCCEEDED:
                await self._tell_causes(ended)
            return ended
        finally:
            watching.cancel()
            await self._logs.close()

    def _spawn(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        """Work beside the waiting, whose failure is the failure of all."""

        def done(task: asyncio.Task[None]) -> None:
            if not task.cancelled() and task.exception() is not None:
                self._broken = task.exception()
                self._changed.set()

        task = asyncio.create_task(work)
        task.add_done_callback(done)
        return task

    async def _end_of(self, job: Job, born: float) -> Ended:
        """The job's end: its replicas', or a deadline's."""
        while True:
            self._changed.clear()
            if self._broken is not None:
                raise self._broken
            if job_state(self._seen).ended:
                return job_ended(self._seen)
            deadlines = self._deadlines(job, born)
            wait, message = min(deadlines, key=lambda each: each[0])
            if wait <= time.time():
                return Ended(state=State.LOST, reason=message)
            try:
                async with asyncio.timeout(wait - time.time()):
                    await self._changed.wait()
            except TimeoutError:
                continue

    def _deadlines(self, job: Job, born: float) -> list[tuple[float, str]]:
        """Times by which something has to be true, each with what is said if it is not."""
        run = (
            born + job.deadlines.run,
            f"{job.name} ran for longer than its deadline of {job.deadlines.run:.0f} s; "
            "allow it more, or give it more replicas",
        )
        deadlines = [run]
        if self._until is not None:
            deadlines.append(
                (self._until, f"{job.name} ran for longer than its task's execution_timeout")
            )
        waiting = {name: seen for name, seen in self._seen.items() if seen.state is State.PENDING}
        if waiting:
            reasons = "; ".join(f"{name} {seen.reason}" for name, seen in list(waiting.items())[:3])
            deadlines.append(
                (
                    born + job.deadlines.start,
                    f"{len(waiting)} of {len(self._seen)} replicas of {job.name} did not start "
                    f"within {job.deadlines.start:.0f} s, so all were given back: {reasons}",
                )
            )
        return deadlines

    async def _watch(self) -> None:
        """Keep ``_seen`` true, whatever the API does meanwhile."""
        labels = f"{JOB_LABEL}={self._address.name}"
        version, listed, pause, away = "", 0.0, _PAUSES[0], 0.0
        while True:
            try:
                if not version or time.monotonic() > listed + RESYNC_SECONDS:
                    version = await self._list(labels)
                    listed = time.monotonic()
                if away:
                    self._say(f"the Kubernetes API is back after {time.monotonic() - away:.0f} s")
                    away, pause = 0.0, _PAUSES[0]
                began = time.monotonic()
                async for event in self._cluster.watch(
                    "Pod", labels=labels, version=version, seconds=WATCH_SECONDS
                ):
                    version = event["object"]["metadata"]["resourceVersion"]
                    if event["type"] != "BOOKMARK":
                        self._take(event["object"], gone=event["type"] == "DELETED")
                if time.monotonic() < began + _PAUSES[0]:  # some proxies let no watch live
                    await asyncio.sleep(_PAUSES[1])
            except (ApiError, AwayError) as error:
                version = ""
                if not (isinstance(error, ApiError) and error.status == 410):
                    if not away:
                        away = time.monotonic()
                        self._say(f"the Kubernetes API is away ({error}); the replicas go on")
                    await asyncio.sleep(pause)
                    pause = min(2 * pause, _PAUSES[1])

    async def _list(self, labels: str) -> str:
        """Take all pods as they are now; the version to watch on from."""
        there: set[ReplicaName] = set()
        version = ""
        async for pods, version in self._cluster.pages("Pod", labels=labels):  # noqa: B007
            for pod in pods:
                there.add(replica_of(pod))
                self._take(pod)
        for name in self._seen.keys() - there:
            self._see(name, observe_pod(None))
        return version

    def _take(self, pod: Mapping[str, Any], *, gone: bool = False) -> None:
        name = replica_of(pod)
        seen = observe_pod(pod)
        if gone and not seen.state.ended:
            seen = observe_pod(None)
        self._see(name, seen)
        if not gone:
            self._logs.follow(name, seen, began=_has_begun(pod))

    def _see(self, name: ReplicaName, seen: Observation) -> None:
        before = self._seen.get(name)
        if before == seen or (before is not None and before.state.ended):
            return  # the first end is the true one: what comes after it is its removal
        self._seen[name] = seen
        if (
            seen.state is State.PENDING
            and seen.reason
            and (not before or before.reason != seen.reason)
        ):
            self._say(f"{name} {seen.reason}")
        self._changed.set()

    async def _tell_causes(self, ended: Ended) -> None:
        """What there is to know of the replicas that the job ended with, beside their own lines."""
        for name in ended.causes[:_TOLD_CAUSES]:
            pod = self._address.pod(name)
            try:
                events, _ = await self._cluster.list("Event", fields=f"involvedObject.name={pod}")
                for event in events:
                    if event.get("type") == "Warning":
                        self._say(f"{name} {event.get('reason')}: {event.get('message')}")
                await self._tell_side_cars(name, await self._cluster.get("Pod", pod))
            except (ApiError, AwayError) as error:
                self._say(f"no more can be told of {pod}: {error}")

    async def _tell_side_cars(self, name: ReplicaName, pod: Mapping[str, Any] | None) -> None:
        """The last lines of the containers beside the replica that have failed."""
        status = pod["status"] if pod else {}
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


def _has_begun(pod: Mapping[str, Any]) -> bool:
    """Whether the replica's container has run, so that it has a log."""
    return any(
        status["name"] == CONTAINER and status["state"].keys() & {"running", "terminated"}
        for status in pod["status"].get("containerStatuses") or ()
    )


def _time(stamp: str) -> float:
    return datetime.fromisoformat(stamp).timestamp()
