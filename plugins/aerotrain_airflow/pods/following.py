"""One set of pods, followed to its end: one watch, one list now and then, and the logs.

A follower knows the set's address and finds all else in the cluster, so that whoever starts it
anew, in another process, goes on where the last one stopped.
"""

import asyncio
import time
from collections.abc import Callable, Coroutine, Iterable, Mapping
from contextlib import suppress
from dataclasses import replace
from typing import Any

from aerotrain.contract.errors import TemporaryError
from aerotrain.contract.job import Job, ReplicaName
from aerotrain.contract.ledger import Entry, What
from aerotrain.contract.progress import Progress
from aerotrain.contract.status import State
from aerotrain_airflow.launchers.base import LogLine
from aerotrain_airflow.pods.address import (
    CONTAINER,
    JOB_LABEL,
    Address,
)
from aerotrain_airflow.pods.cluster import ApiError, AwayError, Cluster
from aerotrain_airflow.pods.deadlines import Deadline, deadlines, missed, next_of, to_be_looked_at
from aerotrain_airflow.pods.identity import is_at, uid_of
from aerotrain_airflow.pods.logs import PodLogs
from aerotrain_airflow.pods.observed import ObservedSet
from aerotrain_airflow.pods.renewal import GoneError, KeptLedger, Renewal
from aerotrain_airflow.pods.states import created_at
from aerotrain_airflow.pods.watching import PodWatch
from aerotrain_airflow.recovery.ended import Ended
from aerotrain_airflow.recovery.recovery import Decision, Recovery, Restart

Emit = Callable[[LogLine], None]
Say = Callable[[str], None]

#: Replicas of which more is told when the job failed, and lines of each failed side-car.
_TOLD_CAUSES, _LAST_LINES = 5, 20


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
        self._changed = asyncio.Event()
        self._broken: BaseException | None = None
        self._ignored: set[str] = set()  # pods of others
        self._is_caught_up = False  # with what another follower had decided
        self._step: int | None = None
        self._news: list[Entry] = []  # of the ledger, not kept as yet

    async def run(self) -> Ended:
        """Wait for the end of the job, and say how it was."""
        owner = await self._cluster.get("ConfigMap", self._address.name)
        if owner is None or not is_at(owner, self._address):
            return Ended(
                state=State.LOST,
                reason=f"the set {self._address} is gone: its ConfigMap was deleted by hand, or "
                "another try of the task has replaced it",
            )
        job = Job.from_json(owner["data"]["job.json"])
        born = created_at(owner)
        self._address = replace(self._address, uid=uid_of(owner))
        self._logs = PodLogs(self._cluster, self._address, self._tell, self._spawn)
        self._logs.go_on_from(owner, job.names())
        self._ledger = KeptLedger(self._cluster, owner)
        self._renewal = Renewal(self._cluster, self._address, owner)
        self._recovery = Recovery(job, self._ledger.entries, self._news.append)
        if not self._ledger.entries:
            self._news.append(Entry(event=What.START, at=born))
        pods = {self._address.pod(name): name for name in job.names()}
        self._observed = ObservedSet(
            pods, uid_of(owner), lambda name: self._recovery.generation(name)
        )
        labels = f"{JOB_LABEL}={self._address.name}"
        self._watch = PodWatch(self._cluster, labels, self._take, self._taken_all, self._say)
        watching = self._spawn(self._watch.run())
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
        try:
            while True:
                self._changed.clear()
                if self._broken is not None:
                    raise self._broken
                decision = await self._decide()
                if isinstance(decision, Ended):
                    return decision
                given = deadlines(job, self._observed.replicas, born, self._until)
                ended = self._by_deadline(given)
                if ended is not None:
                    return ended
                wait = next_of(given, time.time())
                if decision is not None:
                    if decision.not_before <= time.time():
                        await self._restart(job, decision)
                        continue
                    wait = min(wait, decision.not_before)
                with suppress(TimeoutError):
                    async with asyncio.timeout(wait - time.time()):
                        await self._changed.wait()
        except TemporaryError as error:  # such as a set that is gone
            return Ended(state=State.LOST, reason=str(error))

    async def _decide(self) -> Decision:
        """What to do about the replicas: nothing before all of them were seen once."""
        if self._observed.looked is None:
            return None
        if not self._is_caught_up:
            await self._catch_up()
            self._is_caught_up = True
        return self._recovery.decide(self._observed.seen, time.time(), self._step)

    def _by_deadline(self, given: Iterable[Deadline]) -> Ended | None:
        """The end by a deadline that was missed; where only a look tells, that is had taken."""
        now = time.time()
        deadline = missed(given, now, self._observed.looked)
        if deadline is not None:
            for name in deadline.waiting:
                self._recovery.has_no_place(name, self._observed.replicas[name].seen, now)
            return Ended(state=State.LOST, reason=deadline.message)
        if to_be_looked_at(given, now):
            self._watch.look_again()
        return None

    async def _restart(self, job: Job, decision: Restart) -> None:
        """Keep what was decided, and carry it out; or what another follower has decided."""
        self._recovery.restarted(decision, time.time(), self._step)
        news, self._news[:] = list(self._news), []
        if await self._ledger.add(news):
            names = ", ".join(map(str, sorted(decision.names)))
            self._say(f"{decision.because}; starting anew: {names}")
        else:
            self._recovery = Recovery(job, self._ledger.entries, self._news.append)
        await self._catch_up()

    async def _catch_up(self) -> None:
        """Have the pods be as the ledger says, also where another follower wrote it."""
        wanted = {name: self._recovery.generation(name) for name in self._observed.behind()}
        # Before anything is waited for: another follower may be quicker, and its pods run by then.
        self._observed.making(wanted, time.time())
        await self._logs.begin_anew(wanted)
        entries = self._ledger.entries
        await asyncio.gather(*(self._renewal.renew(name, wanted[name], entries) for name in wanted))
        self._observed.made(wanted, time.time())

    def _tell(self, line: LogLine) -> None:
        progress = Progress.parse(line.text)
        self._step = progress.step if progress else self._step
        self._emit(line)

    def _take(self, pod: Mapping[str, Any], gone: bool) -> ReplicaName | None:
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

    async def _tell_causes(self, ended: Ended) -> None:
        """What there is to know of the replicas that the job ended with, beside their own lines."""
        for name in ended.causes[:_TOLD_CAUSES]:
            pod, uid = self._address.pod(name), self._observed.replicas[name].uid
            if not uid:
                continue  # no pod of it was ever seen
            try:
                events, _ = await self._cluster.list("Event", fields=f"involvedObject.uid={uid}")
                for event in events:
                    if event.get("type") == "Warning":
                        self._say(f"{name} {event.get('reason')}: {event.get('message')}")
                there = await self._cluster.get("Pod", pod)
                if there is not None and uid_of(there) == uid:
                    await self._tell_side_cars(name, there)
            except (ApiError, AwayError) as error:
                self._say(f"no more can be told of {pod}: {error}")

    async def _tell_side_cars(self, name: ReplicaName, pod: Mapping[str, Any]) -> None:
        """The last lines of the containers beside the replica that have failed."""
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


def _has_begun(pod: Mapping[str, Any]) -> bool:
    """Whether the replica's container has run, so that it has a log."""
    return any(
        status["name"] == CONTAINER and status["state"].keys() & {"running", "terminated"}
        for status in pod["status"].get("containerStatuses") or ()
    )
