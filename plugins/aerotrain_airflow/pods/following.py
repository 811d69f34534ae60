"""One set of pods, followed to its end: one watch, one list now and then, and the logs.

A follower knows the set's address and finds all else in the cluster, so that whoever starts it
anew, in another process, goes on where the last one stopped.
"""

import asyncio
import time
from collections.abc import Callable, Coroutine, Iterable, Mapping
from contextlib import suppress
from datetime import datetime
from typing import Any

from aerotrain.contract.job import Job, ReplicaName
from aerotrain.contract.ledger import Entry, What
from aerotrain.contract.progress import Progress
from aerotrain.contract.status import Observation, State, job_state
from aerotrain_airflow.launchers.base import LogLine
from aerotrain_airflow.pods.address import (
    ATTEMPT,
    CONTAINER,
    JOB_LABEL,
    Address,
    annotations,
    replica_of,
)
from aerotrain_airflow.pods.cluster import ApiError, AwayError, Cluster
from aerotrain_airflow.pods.deadlines import nearest_deadline
from aerotrain_airflow.pods.logs import PodLogs
from aerotrain_airflow.pods.renewal import GoneError, KeptLedger, Renewal, generation_of
from aerotrain_airflow.pods.states import observe_pod
from aerotrain_airflow.recovery.ended import Ended, job_ended
from aerotrain_airflow.recovery.recovery import Decision, Recovery, Restart

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
        self._emit = emit
        self._logs = PodLogs(cluster, address, self._tell, self._spawn)
        self._seen: dict[ReplicaName, Observation] = {}
        self._changed = asyncio.Event()
        self._broken: BaseException | None = None
        self._step: int | None = None
        self._renewed: set[ReplicaName] = set()  # whose pods are just being made again
        self._news: list[Entry] = []  # of the ledger, not kept as yet

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
        born = _time(owner["metadata"]["creationTimestamp"])
        self._logs.go_on_from(owner, self._seen)
        self._ledger = KeptLedger(self._cluster, owner)
        self._renewal = Renewal(self._cluster, self._address, owner, job)
        self._recovery = Recovery(job, self._ledger.entries, self._news.append)
        if not self._ledger.entries:
            self._news.append(Entry(event=What.START, at=born))
        watching = self._spawn(self._watch())
        try:
            ended = await self._end_of(job, born)
            with suppress(GoneError):  # whoever has ended the set has no use for its ledger
                await self._ledger.add(self._news)
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
        starts = born
        await self._catch_up(job)
        while True:
            self._changed.clear()
            if self._broken is not None:
                raise self._broken
            decision = self._decide()
            if isinstance(decision, Ended):
                return decision
            deadline = nearest_deadline(job, self._seen, born, starts, self._until)
            wait = deadline.at
            if wait <= time.time():
                for name in deadline.waiting:
                    self._recovery.has_no_place(name, self._seen[name], time.time())
                return Ended(state=State.LOST, reason=deadline.message)
            if decision is not None:
                if decision.not_before <= time.time():
                    starts = time.time()
                    try:
                        await self._restart(job, decision)
                    except GoneError as error:
                        return Ended(state=State.LOST, reason=str(error))
                    continue
                wait = min(wait, decision.not_before)
            try:
                async with asyncio.timeout(wait - time.time()):
                    await self._changed.wait()
            except TimeoutError:
                continue

    def _decide(self) -> Decision:
        if self._renewal.possible:
            return self._recovery.decide(self._seen, time.time(), self._step)
        # Made by hand, and nobody knows what of.
        return job_ended(self._seen) if job_state(self._seen).ended else None

    async def _restart(self, job: Job, decision: Restart) -> None:
        """Keep what was decided, and carry it out; or what another follower has decided."""
        self._recovery.restarted(decision, time.time(), self._step)
        news, self._news[:] = list(self._news), []
        if await self._ledger.add(news):
            names = ", ".join(map(str, sorted(decision.names)))
            self._say(f"{decision.because}; starting anew: {names}")
        else:
            self._recovery = Recovery(job, self._ledger.entries, self._news.append)
        await self._catch_up(job, decision.names)

    async def _catch_up(self, job: Job, names: Iterable[ReplicaName] = ()) -> None:
        """Have the pods be as the ledger says, whoever wrote it: of these, or of all replicas."""
        wanted = {name: self._recovery.generation(name) for name in names or job.names()}
        self._renewed = {name for name, generation in wanted.items() if generation}
        # Before anything is waited for: another follower may be quicker, and its pods run by then.
        self._seen |= dict.fromkeys(self._renewed, Observation(state=State.PENDING))
        await self._logs.begin_anew(self._renewed)
        entries = self._ledger.entries
        await asyncio.gather(
            *(self._renewal.renew(name, wanted[name], entries) for name in self._renewed)
        )
        self._renewed = set()

    def _tell(self, line: LogLine) -> None:
        progress = Progress.parse(line.text)
        self._step = progress.step if progress else self._step
        self._emit(line)

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
        for name in self._seen.keys() - there - self._renewed:
            self._see(name, observe_pod(None))
        return version

    def _take(self, pod: Mapping[str, Any], *, gone: bool = False) -> None:
        name = replica_of(pod)
        if generation_of(pod) < self._recovery.generation(name):
            return  # on its way out, and its next life is what counts
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
