"""The start and the end of a group: created completely or not at all, adopted, ended by its holder.

The owner's annotation ``holder`` has the id of the task try that holds the group. A retry, a
restarted worker or a second scheduler finds the group by its name and adopts it; a task try that is
no longer the holder cannot end it.
"""

import asyncio
import time
from collections.abc import AsyncIterator, Coroutine, Iterable, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from typing import Any, TypeVar

from aerotrain.contract.errors import AerotrainError, FinalError, TemporaryError
from aerotrain.contract.event_log import Event, EventType
from aerotrain_airflow.backends.base import Found, GoneError
from aerotrain_airflow.backends.kubernetes.access import needed
from aerotrain_airflow.backends.kubernetes.address import (
    ATTEMPT,
    DESCRIPTION,
    HOLDER,
    JOB_LABEL,
    ROLE_LABEL,
    STARTED,
    Address,
    annotations,
)
from aerotrain_airflow.backends.kubernetes.cluster import ApiError, AwayError, Cluster
from aerotrain_airflow.backends.kubernetes.identity import (
    in_the_way,
    is_an_owner,
    is_at,
    is_of_a_job,
    is_owned_by,
    reference_to,
    uid_of,
)
from aerotrain_airflow.backends.kubernetes.observed import ObservedSet
from aerotrain_airflow.backends.kubernetes.plan import PodPlan
from aerotrain_airflow.backends.kubernetes.renewal import (
    EVENTS,
    TEMPLATES,
    EventLog,
    delete_pod,
    templates,
)
from aerotrain_airflow.backends.kubernetes.states import created_at
from aerotrain_airflow.controller.decision import Seen
from aerotrain_airflow.controller.history import History

Manifest = Mapping[str, Any]
T = TypeVar("T")

#: Concurrent requests while a group is created.
_AT_ONCE = 16

#: Seconds that a deleted group may take: the pods' grace period and the node's answer. If a pod
#: still exists then, its node does not respond, and it is deleted by force.
_GOING = 20.0

#: Seconds between two checks whether it is gone.
_LOOK_EVERY = 0.5


async def check_cluster(cluster: Cluster, plans: Sequence[PodPlan]) -> None:
    """Check every permission, and create each kind of object as a dry run.

    Raises:
        FinalError: something is missing; the message says who can fix it.
        TemporaryError: the API is unavailable or lacks resources.
    """
    async with errors_translated(cluster):
        needs = list(dict.fromkeys(need for plan in plans for need in needed(plan)))
        granted = await _together(cluster.may(need) for need in needs)
        missing = [f"{need}" for need, may in zip(needs, granted, strict=True) if not may]
        if missing:
            raise FinalError(
                f"Airflow may not {', '.join(missing)} in namespace {cluster.namespace}; have "
                "deploy/role.yaml applied there and bound to the account that Airflow uses"
            )
        for manifest in [each for plan in plans for each in _one_of_each(plan)]:
            try:
                await cluster.create(manifest, dry_run=True)
            except ApiError as error:
                if error.reason != "AlreadyExists":
                    raise
                await _refuse_another(cluster, manifest)


class PodClaim:
    """Creates or adopts the group of the plan, on behalf of the task try ``holder``.

    Of two concurrent tries, the API lets one create and one adopt.
    """

    def __init__(self, cluster: Cluster, plan: PodPlan, holder: str) -> None:
        self._cluster = cluster
        self._plan = plan
        self._holder = holder

    async def find(self) -> Found | None:
        """The group of the job's name; None for an incomplete one of this very attempt.

        Raises:
            FinalError: another object has the name.
        """
        owner = await self._cluster.get("ConfigMap", self._plan.job.name)
        if owner is None or self._is_half_made(owner):
            return None
        if not is_an_owner(owner, self._plan.job.name):
            raise FinalError(in_the_way(owner, self._plan.namespace))
        events = EventLog(self._cluster, owner).events
        matches = self._matches(owner)
        return Found(
            handle=str(_address(self._plan, owner)),
            matches=matches,
            created=created_at(owner),
            events=events,
            seen=await self._seen(owner, events) if matches else {},
        )

    async def create(self) -> str | None:
        """Create the group, or complete an incomplete one; None if its name was taken."""
        owner = await _make_owner(self._cluster, self._plan, self._holder)
        if owner is None:
            owner = await self._cluster.get("ConfigMap", self._plan.job.name)
            if owner is None or not self._is_half_made(owner):
                return None
        return str(await _make_rest(self._cluster, self._plan, owner))

    async def adopt(self, found: Found) -> bool:
        """Make this try the holder of the group, unless it was changed at the same moment."""
        owner = await self._owner_of(found)
        if owner is None or not await _hold(self._cluster, owner, self._holder):
            return False
        adopted = Event(event=EventType.ADOPT, at=time.time(), because=self._holder)
        log = EventLog(self._cluster, owner)
        with suppress(GoneError):
            while not await log.append([adopted]):
                pass  # its follower has just added an event
        return True

    async def delete(self, found: Found) -> None:
        owner = await self._owner_of(found)
        if owner is not None:
            await _end_and_wait(self._cluster, owner)

    async def _owner_of(self, found: Found) -> dict[str, Any] | None:
        owner = await self._cluster.get("ConfigMap", self._plan.job.name)
        is_it = owner is not None and is_at(owner, Address.parse(found.handle))
        return owner if is_it else None

    def _is_half_made(self, owner: Manifest) -> bool:
        """Whether it is this attempt's own group, whose creation was interrupted."""
        marks = annotations(owner)
        return (
            is_an_owner(owner, self._plan.job.name)
            and marks.get(ATTEMPT) == self._plan.attempt
            and marks.get(STARTED) != "true"
            and "deletionTimestamp" not in owner["metadata"]
            and _is_held(owner, self._holder)
        )

    def _matches(self, owner: Manifest) -> bool:
        """Whether the group was created completely, and from the same description."""
        marks = annotations(owner)
        return (
            "deletionTimestamp" not in owner["metadata"]
            and marks.get(STARTED) == "true"
            and marks.get(DESCRIPTION) == self._plan.description
        )

    async def _seen(self, owner: Manifest, events: Sequence[Event]) -> Seen:
        """The current observation of every replica of the owner's group."""
        address, began = _address(self._plan, owner), time.time()
        pods_of = {address.pod(name): name for name in self._plan.job.names()}
        observed = ObservedSet(pods_of, address.uid, lambda name: History.of(name, events).restarts)
        labels = f"{JOB_LABEL}={self._plan.job.name}"
        pods, _ = await self._cluster.list("Pod", labels=labels)
        changes = [change for pod in pods if (change := observed.take(pod)) is not None]
        observed.looked_at_all({change.name for change in changes}, began)
        return observed.seen


async def end(cluster: Cluster, address: Address, holder: str) -> None:
    """Delete the group if it is the one at ``address`` and ``holder`` still holds it."""
    async with errors_translated(cluster):
        while True:
            owner = await cluster.get("ConfigMap", address.name)
            if owner is None or not is_at(owner, address) or not _is_held(owner, holder):
                return
            version = owner["metadata"]["resourceVersion"]
            try:
                await cluster.delete("ConfigMap", address.name, uid_of(owner), version)
                return
            except ApiError as error:
                if error.status != 409:  # changed meanwhile, perhaps by its next holder
                    raise


async def _refuse_another(cluster: Cluster, manifest: Manifest) -> None:
    """Fail if an object that does not belong to the job has the manifest's name."""
    name, job = manifest["metadata"]["name"], manifest["metadata"]["labels"][JOB_LABEL]
    there = await cluster.get(manifest["kind"], name)
    is_ours = is_an_owner if manifest["kind"] == "ConfigMap" else is_of_a_job
    if there is not None and not is_ours(there, job):
        raise FinalError(in_the_way(there, cluster.namespace))


def owner_of(plan: PodPlan, holder: str) -> dict[str, Any]:
    """The manifest of the owner of the plan's group, with its holder."""
    metadata = plan.owner["metadata"]
    marks = {**metadata["annotations"], HOLDER: holder}
    pods = [each for each in plan.others if each["kind"] == "Pod"]
    began = Event(event=EventType.START, at=time.time())
    return {
        **plan.owner,
        "metadata": {**metadata, "annotations": marks},
        "data": {**plan.owner["data"], TEMPLATES: templates(pods), EVENTS: f"{began.to_json()}\n"},
    }


async def _make_owner(cluster: Cluster, plan: PodPlan, holder: str) -> dict[str, Any] | None:
    """Create the owner; None if its name is taken."""
    try:
        return await cluster.create(owner_of(plan, holder))
    except ApiError as error:
        if error.reason == "AlreadyExists":
            return None
        raise


async def _make_rest(cluster: Cluster, plan: PodPlan, owner: Manifest) -> Address:
    """Create all other objects: first what pods need, then all pods concurrently."""
    pods = [each for each in plan.others if each["kind"] == "Pod"]
    before = [each for each in plan.others if each["kind"] != "Pod"]
    room = asyncio.Semaphore(_AT_ONCE)

    async def make(manifest: Manifest) -> None:
        async with room:
            await _make(cluster, manifest, owner)

    try:
        for manifests in (before, pods):
            await _together(map(make, manifests))
        marks = {"annotations": {STARTED: "true"}}
        await cluster.patch("ConfigMap", plan.job.name, uid_of(owner), metadata=marks)
    except BaseException:  # an incomplete group is of no use
        await cluster.delete("ConfigMap", plan.job.name, uid_of(owner))
        raise
    return _address(plan, owner)


def _address(plan: PodPlan, owner: Manifest) -> Address:
    return Address(plan.namespace, plan.job.name, annotations(owner)[ATTEMPT], uid_of(owner))


async def _make(cluster: Cluster, manifest: Manifest, owner: Manifest) -> None:
    """Create one object; wait for one of the same name and another owner to be deleted."""
    references = [reference_to(owner)]
    owned = {**manifest, "metadata": {**manifest["metadata"], "ownerReferences": references}}
    until = time.monotonic() + _GOING
    while True:
        try:
            await cluster.create(owned)
            return
        except ApiError as error:
            if error.reason != "AlreadyExists":
                raise
            there = await cluster.get(manifest["kind"], manifest["metadata"]["name"])
            if there is not None and is_owned_by(there, uid_of(owner)):
                return
            if time.monotonic() > until:
                raise TemporaryError(in_the_way(manifest, cluster.namespace)) from error
            await asyncio.sleep(_LOOK_EVERY)


async def _hold(cluster: Cluster, owner: Manifest, holder: str) -> bool:
    """Make ``holder`` the holder of the group; False if it was changed at the same moment."""
    name, version = (owner["metadata"][each] for each in ("name", "resourceVersion"))
    marks = {"annotations": {HOLDER: holder}}
    try:
        await cluster.patch("ConfigMap", name, uid_of(owner), version, metadata=marks)
    except ApiError as error:
        if error.status in (404, 409):
            return False
        raise
    return True


async def _end_and_wait(cluster: Cluster, owner: Manifest) -> None:
    """Delete a group that cannot be adopted, and wait until its names are free."""
    name = owner["metadata"]["name"]
    await cluster.delete("ConfigMap", name, uid_of(owner))
    until = time.monotonic() + _GOING
    while True:
        labelled, _ = await cluster.list("Pod", labels=f"{JOB_LABEL}={name}")
        pods = [pod for pod in labelled if is_owned_by(pod, uid_of(owner))]
        if not pods:
            return
        if time.monotonic() > until:
            for pod in pods:
                await delete_pod(cluster, pod, force=True)
        await asyncio.sleep(_LOOK_EVERY)


async def _together(works: Iterable[Coroutine[Any, Any, T]]) -> list[T]:
    """The results of all, run concurrently; the first failure cancels the others and is raised."""
    try:
        async with asyncio.TaskGroup() as group:
            tasks = [group.create_task(work) for work in works]
    except BaseExceptionGroup as errors:
        raise errors.exceptions[0] from None
    return [task.result() for task in tasks]


@asynccontextmanager
async def errors_translated(cluster: Cluster) -> AsyncIterator[None]:
    """Translate errors of the API into the two kinds of error of this project."""
    try:
        yield
    except ApiError as error:
        raise _explanation(error, cluster.namespace) from error
    except AwayError as error:
        raise TemporaryError(f"the Kubernetes API does not answer: {error}") from error


def _explanation(error: ApiError, namespace: str) -> AerotrainError:
    if "exceeded quota" in error.message:
        return TemporaryError(
            f"namespace {namespace} has no room for the job: {error.message}; wait, ask for "
            "less, or have the quota raised"
        )
    if error.status == 403:
        return FinalError(
            f"the cluster does not allow it: {error.message}; see deploy/ for what is needed"
        )
    if error.status == 404 and "namespaces" in error.message:
        return FinalError(
            f"there is no namespace {namespace}; make it, or set [aerotrain] namespace"
        )
    if error.status in (400, 404, 422):
        return FinalError(f"the cluster refuses the job's objects: {error.message}")
    return TemporaryError(f"the cluster could not take the job: {error}")


def _one_of_each(plan: PodPlan) -> Iterable[Manifest]:
    """One manifest of each kind, and one pod per role: the others are like these."""
    alike = {
        (each["kind"], each["metadata"]["labels"].get(ROLE_LABEL)): each
        for each in (plan.owner, *plan.others)
    }
    return alike.values()


def _is_held(owner: Manifest, holder: str) -> bool:
    return annotations(owner).get(HOLDER) == holder
