"""Creates a group completely or not at all, adopts one, restarts its pods, and ends it.

The owner of a group is a ConfigMap: the state that all followers share, with the event log.

The owner's annotation ``holder`` has the id of the task try that holds the group. A retry, a
restarted worker or a second scheduler finds the group by its name and adopts it; a task try that is
no longer the holder cannot end it.
"""

import asyncio
import json
import time
from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import replace
from itertools import chain, starmap
from logging import getLogger
from typing import Any

from aerotrain.contract.environment import without_variable
from aerotrain.contract.errors import FinalError, TemporaryError
from aerotrain.contract.event_log import Event, EventType, read
from aerotrain.contract.job import Job
from aerotrain.contract.replicas import ReplicaName, Role
from aerotrain.launch.backend import ExistingGroup, GroupGoneError
from aerotrain.launch.decision import Ended, Restart
from aerotrain.launch.restart_policy import Observations, compacted, restart_counts
from aerotrain.launch.size import Size
from aerotrain_airflow.kubernetes.cluster import ApiError, Cluster, NoRoomError, together
from aerotrain_airflow.kubernetes.identity import (
    DESCRIPTION,
    HOLDER,
    INDEX_LABEL,
    JOB_LABEL,
    ROLE_LABEL,
    STARTED,
    Handle,
    annotations,
    in_the_way,
    is_an_owner,
    is_being_deleted,
    is_owned_by,
    owned,
    pod_name,
    restarts_of,
    uid_of,
    without_restarts,
)
from aerotrain_airflow.kubernetes.kueue import Kueue, end_without_owner, queue_of
from aerotrain_airflow.kubernetes.observed import ObservedGroup
from aerotrain_airflow.kubernetes.plan import PodPlan, shared_objects
from aerotrain_airflow.kubernetes.pod import GRACE, replica_pod
from aerotrain_airflow.kubernetes.states import created_at, has_ended

Manifest = Mapping[str, Any]

#: Concurrent requests while a group is created.
_AT_ONCE = 16

#: Seconds that a deletion may take: the pods' usual grace period and the node's answer. A pod that
#: still exists then is deleted by force, because its node does not respond.
DELETED_WITHIN = 20.0

#: Seconds between two checks whether an object is gone.
_LOOK_EVERY = 0.5

#: Seconds between two attempts to create a group for which a quota has no room.
ROOM_EVERY = 10.0

#: Keys of the owner's data: the event log, and a pod of each role for restarts.
EVENTS, TEMPLATES = "events.jsonl", "pods.json"

#: The limit of an event log in bytes, of the 1 MiB of a ConfigMap, which also has pods and job.
LIMIT = 512 * 1024

_LOG = getLogger(__name__)


def _deleted_within(objects: Iterable[Manifest]) -> float:
    """``DELETED_WITHIN``, and what a pod template has added to the grace period."""
    graces = [each.get("spec", {}).get("terminationGracePeriodSeconds") or 0 for each in objects]
    return DELETED_WITHIN + max([GRACE, *graces]) - GRACE


def owner_of(plan: PodPlan, holder: str) -> dict[str, Any]:
    """The manifest of the owner of the plan's group, with its holder."""
    metadata = plan.owner["metadata"]
    templates: dict[str, Manifest] = {}
    for pod in plan.pods:
        templates.setdefault(pod["metadata"]["labels"][ROLE_LABEL], pod)
    began = Event(event=EventType.START, at=time.time())
    return {
        **plan.owner,
        "metadata": {**metadata, "annotations": {**metadata["annotations"], HOLDER: holder}},
        "data": {
            **plan.owner["data"],
            TEMPLATES: json.dumps(templates),
            **log_data([began]),
        },
    }


async def read_owner(cluster: Cluster, handle: Handle) -> dict[str, Any]:
    """The current owner of the group.

    Raises:
        GroupGoneError: it does not exist, or belongs to another group.
    """
    owner = await cluster.get("ConfigMap", handle.name)
    if owner is None or not handle.is_of(owner):
        raise GroupGoneError(
            f"the replica group {handle} is gone: its ConfigMap was deleted by hand, or another "
            "try of the task has replaced it"
        )
    return owner


def events_of(owner: Manifest) -> list[Event]:
    """The event log in the owner of a group."""
    return read(owner["data"].get(EVENTS, "").splitlines())


def log_data(events: Sequence[Event]) -> dict[str, str]:
    """The event log as the owner's data, compacted to the limit."""
    return {EVENTS: "".join(f"{each.to_json()}\n" for each in compacted(events, LIMIT))}


class PodClaim:
    """Creates or adopts the group of the plan, on behalf of the task try ``holder``.

    Of two concurrent tries, the API lets one create and one adopt.
    """

    def __init__(self, cluster: Cluster, plan: PodPlan, holder: str) -> None:
        self._cluster = cluster
        self._plan = plan
        self._name = plan.job.name
        self._holder = holder
        self._wait_until = time.monotonic() + plan.job.deadlines.start
        self._said = False

    async def find(self) -> ExistingGroup | None:
        """The group of the job's name; one that was not created completely does not match.

        Raises:
            FinalError: another object has the name.
        """
        owner = await self._cluster.get("ConfigMap", self._name)
        if owner is None:
            return None
        if not is_an_owner(owner, self._name):
            raise FinalError(in_the_way(owner, self._plan.namespace))
        events = events_of(owner)
        matches = (
            not is_being_deleted(owner)
            and annotations(owner).get(STARTED) == "true"
            and annotations(owner)[DESCRIPTION] == self._plan.description
        )
        return ExistingGroup(
            handle=str(Handle.of(owner)),
            matches=matches,
            created=created_at(owner),
            events=events,
            seen=await self._seen(owner, events) if matches else {},
        )

    async def create(self) -> str | None:
        """Create the group.

        None if its name was taken, or if a quota had no room, until the start deadline.
        """
        owner = await self._cluster.create(owner_of(self._plan, self._holder))
        if owner is None:
            return None
        try:
            await self._complete(owner)
        except BaseException as error:  # an incomplete group is of no use, and has what others need
            await self._cluster.delete("ConfigMap", self._name, uid_of(owner))
            if isinstance(error, NoRoomError) and await self._waits_for_room(error):
                return None
            raise
        return str(Handle.of(owner))

    async def _waits_for_room(self, error: NoRoomError) -> bool:
        """Wait if time remains, because a quota had no room for the group."""
        if time.monotonic() + ROOM_EVERY > self._wait_until:
            return False
        if not self._said:
            _LOG.info("%s waits for a quota: %s", self._name, error.detail)
        self._said = True
        await asyncio.sleep(ROOM_EVERY)
        return True

    async def adopt(self, found: ExistingGroup) -> bool:
        """Make this try the holder of the group, unless it was changed at the same moment."""
        owner = await self._owner_of(found)
        if owner is None:
            return False
        adopted = Event(event=EventType.ADOPT, at=time.time(), because=self._holder)
        try:
            await self._cluster.patch(
                "ConfigMap",
                self._name,
                uid_of(owner),
                owner["metadata"]["resourceVersion"],
                metadata={"annotations": {HOLDER: self._holder}},
                data=log_data([*events_of(owner), adopted]),
            )
        except ApiError as error:
            if error.status in (404, 409):
                return False
            raise
        return True

    async def delete(self, found: ExistingGroup) -> None:
        """Delete a group that cannot be adopted, and wait until its names are free."""
        owner = await self._owner_of(found)
        if owner is None:
            return
        await _end_queue(self._cluster, owner)
        await self._cluster.delete("ConfigMap", self._name, uid_of(owner))
        began = time.monotonic()
        while True:
            pods = await _pods_of(self._cluster, owner)
            if not pods:
                return
            if time.monotonic() > began + _deleted_within(pods):
                for pod in pods:
                    await _delete_pod(self._cluster, pod, queue_of(owner), force=True)
            await asyncio.sleep(_LOOK_EVERY)

    async def _owner_of(self, found: ExistingGroup) -> dict[str, Any] | None:
        owner = await self._cluster.get("ConfigMap", self._name)
        return owner if owner and Handle.parse(found.handle).is_of(owner) else None

    async def _complete(self, owner: Manifest) -> None:
        """Create all other objects: first what pods need, then all pods concurrently.

        The workers without which the job may begin come last. Those for which a quota has no room
        are left to the followers of the group.
        """
        shared = [each for each in self._plan.others if each["kind"] != "Pod"]
        pods = dict(zip(self._plan.job.names(), self._plan.pods, strict=True))
        least = self._plan.job.sizes[0]
        more = [name for name in pods if name.role is Role.WORKER and name.index >= least]
        needed = [pod for name, pod in pods.items() if name not in more]
        for manifests in (shared, needed):
            works = (_create(self._cluster, manifest, owner) for manifest in manifests)
            await together(works, at_once=_AT_ONCE)

        async def begun_later(name: ReplicaName) -> list[Event]:
            try:
                await _create(self._cluster, pods[name], owner)
            except NoRoomError as error:
                start = Event(event=EventType.RESTART, at=time.time(), replica=str(name))
                return [replace(start, restarts=1, because=error.detail)]
            return []

        later = await together(map(begun_later, more), at_once=_AT_ONCE)
        await self._cluster.patch(
            "ConfigMap",
            self._name,
            uid_of(owner),
            metadata={"annotations": {STARTED: "true"}},
            data=log_data([*events_of(owner), *chain(*later)]),
        )

    async def _seen(self, owner: Manifest, events: Sequence[Event]) -> Observations:
        """The current observation of every replica of the owner's group."""
        restarts = restart_counts(events)
        observed = ObservedGroup(
            self._plan.job.names(),
            Handle.of(owner),
            lambda name: restarts.get(str(name), 0),
            is_gated=queue_of(owner) is not None,
        )
        began = time.time()
        for pod in await self._cluster.list("Pod", labels=f"{JOB_LABEL}={self._name}"):
            observed.take(pod)
        observed.looked_at_all(began)
        return observed.seen


async def _held(cluster: Cluster, handle: Handle, holder: str) -> dict[str, Any] | None:
    """The owner of the group, if it exists and ``holder`` still holds it."""
    owner = await cluster.get("ConfigMap", handle.name)
    if owner is None:
        await end_without_owner(cluster, handle)
        return None
    return owner if handle.is_of(owner) and annotations(owner)[HOLDER] == holder else None


async def end(cluster: Cluster, handle: Handle, holder: str) -> None:
    """Delete the group with this handle, if it exists and ``holder`` still holds it."""
    while (owner := await _held(cluster, handle, holder)) is not None:
        version = owner["metadata"]["resourceVersion"]
        await _end_queue(cluster, owner)
        try:
            await cluster.delete("ConfigMap", handle.name, uid_of(owner), version)
            return
        except ApiError as error:
            if error.status != 409:  # changed meanwhile, perhaps by its next holder
                raise


async def end_pods(cluster: Cluster, handle: Handle, holder: str) -> None:
    """Delete the pods of the group, if its end is recorded and ``holder`` holds it."""
    owner = await _held(cluster, handle, holder)
    if owner is None or Ended.recorded_in(events_of(owner)) is None:
        return  # without a recorded end, its followers would restart the pods
    await _end_queue(cluster, owner)
    works = (_delete_pod(cluster, pod, queue_of(owner)) for pod in await _pods_of(cluster, owner))
    await together(works, at_once=_AT_ONCE)


async def _end_queue(cluster: Cluster, owner: Manifest) -> None:
    """Give back what the group has of its queue."""
    if (queue := queue_of(owner)) is not None:
        await queue.end(cluster)


async def _pods_of(
    cluster: Cluster, owner: Manifest, replica: ReplicaName | None = None
) -> list[dict[str, Any]]:
    """The pods of the owner's group, or of one replica of it, at every restart count."""
    job = owner["metadata"]["name"]
    labels = f"{JOB_LABEL}={job}"
    if replica is not None:
        labels += f",{ROLE_LABEL}={replica.role.value},{INDEX_LABEL}={replica.index}"
    labelled = await cluster.list("Pod", labels=labels)
    own = [pod for pod in labelled if is_owned_by(pod, uid_of(owner))]
    if replica is None:
        return own
    return [pod for pod in own if without_restarts(pod) == pod_name(job, replica)]  # no copies


async def _create(cluster: Cluster, manifest: Manifest, owner: Manifest) -> Manifest:
    """Create one object of the group; wait for one of the same name and another owner to go.

    Raises:
        TemporaryError: it remains.
    """
    began = time.monotonic()
    while (made := await cluster.create(owned(manifest, owner))) is None:
        there = await cluster.get(manifest["kind"], manifest["metadata"]["name"])
        if there is not None and is_owned_by(there, uid_of(owner)):
            return there
        if time.monotonic() > began + _deleted_within([there] if there else []):
            raise TemporaryError(in_the_way(manifest, cluster.namespace))
        await asyncio.sleep(_LOOK_EVERY)
    return made


class _Look:
    """The owner of a group and its pods, read once for all replicas that ask at the same time."""

    def __init__(self, cluster: Cluster, handle: Handle, names: Collection[ReplicaName]) -> None:
        self._cluster = cluster
        self._handle = handle
        self._replica = next(iter(names)) if len(names) == 1 else None
        self._reading: asyncio.Task[tuple[Manifest, dict[str, list[Manifest]]]] | None = None

    async def __call__(self, name: ReplicaName) -> tuple[Manifest, list[Manifest]]:
        if self._reading is None or self._reading.done():
            self._reading = asyncio.create_task(self._read())
        owner, pods = await asyncio.shield(self._reading)
        return owner, pods.get(pod_name(self._handle.name, name), [])

    async def _read(self) -> tuple[Manifest, dict[str, list[Manifest]]]:
        owner = await read_owner(self._cluster, self._handle)
        pods: dict[str, list[Manifest]] = defaultdict(list)
        for pod in await _pods_of(self._cluster, owner, self._replica):
            pods[without_restarts(pod)].append(pod)
        return owner, pods


async def restart_pods(
    cluster: Cluster, handle: Handle, restart: Restart, known: Mapping[str, int], size: Size
) -> list[tuple[ReplicaName, Manifest]]:
    """Restart these replicas to these restart counts, even if another process has begun to.

    Those of ``restart.ends`` are ended, and may save before; but not what another follower has
    started since the restarts that are ``known`` to this one, by replica. Returns the new pods.
    Each former pod has ended before: otherwise two would have its DNS name. The better the group
    of that ``size`` can do without a replica, the later it comes: a quota may be short.

    Raises:
        GroupGoneError: the group no longer exists.
        NoRoomError: a quota has no room for one; others are restarted.
        TemporaryError: a pod of another group has the name, and remains.
    """
    look = _Look(cluster, handle, {*restart.counts, *restart.ends})
    ranks = {name: size.rank(name) for name in restart.counts}
    done = {name: asyncio.Event() for name in ranks}
    own = without_variable(size.absent())
    pods: list[tuple[ReplicaName, Manifest]] = []
    short: dict[int, NoRoomError] = {}

    async def restarted(name: ReplicaName, rank: int) -> None:
        count, force = restart.counts[name], name in restart.force
        owner, pod = await _ended(cluster, name, count, look, force=force)
        for each in ranks:
            if ranks[each] < rank:
                await done[each].wait()
        try:
            if pod is None and rank <= min(short, default=rank):
                pod = await _create(cluster, _next_pod(owner, name, restart, own), owner)
        except NoRoomError as error:
            short[rank] = error
        if pod is not None:
            pods.append((name, pod))
        done[name].set()

    async def ended(name: ReplicaName) -> None:
        await _ended(cluster, name, known.get(str(name), 0) + 1, look)

    await together([*map(ended, restart.ends), *starmap(restarted, ranks.items())])
    for error in short.values():
        raise error
    return pods


def _next_pod(
    owner: Manifest, name: ReplicaName, restart: Restart, own: Mapping[str, str]
) -> Manifest:
    """The pod of a replica after ``restart``, with the variables ``own``."""
    pod = replica_pod(
        json.loads(owner["data"][TEMPLATES])[name.role.value],
        owner["metadata"]["name"],
        name,
        restarts=restart.counts[name],
        avoid=restart.avoid.get(name, ""),
        memory=restart.memory.get(name, 1.0),
    )
    pod["spec"]["containers"][0]["env"] += [{"name": n, "value": text} for n, text in own.items()]
    return pod


async def _ended(
    cluster: Cluster, name: ReplicaName, count: float, look: _Look, *, force: bool = False
) -> tuple[Manifest, Manifest | None]:
    """The owner, once all pods of a replica below that restart count have ended; or its new pod."""
    began = time.monotonic()
    while True:
        owner, pods = await look(name)
        if newer := [pod for pod in pods if restarts_of(pod) >= count]:
            return owner, newer[0]
        force = force or time.monotonic() > began + _deleted_within(pods)
        alive = [pod for pod in pods if not has_ended(pod)]
        for pod in pods:
            if force or not is_being_deleted(pod):
                await _delete_pod(cluster, pod, queue_of(owner), force=force)
        if force or not alive:
            return owner, None
        await asyncio.sleep(_LOOK_EVERY)


async def restore_shared(cluster: Cluster, handle: Handle, job: Job) -> None:
    """Create again what all pods of the group need, if it was deleted by hand."""
    owner = {"metadata": {"name": handle.name, "uid": handle.uid}}
    for manifest in shared_objects(job, handle.namespace):
        await cluster.create(owned(manifest, owner))


async def _delete_pod(
    cluster: Cluster, pod: Manifest, queue: Kueue | None, *, force: bool = False
) -> None:
    """Delete exactly this pod; another one that has its name meanwhile remains."""
    name, uid = pod["metadata"]["name"], uid_of(pod)
    try:
        await cluster.delete("Pod", name, uid, force=force)
        # Kueue removes its finalizer once a failed pod is replaced, but counts one of another phase
        # as running, and deletes the pod that is created in its place.
        if queue and (force or pod["status"].get("phase") == "Succeeded"):
            await queue.release(cluster, pod)
    except ApiError as error:
        if error.status not in (404, 409):
            raise
