"""The beginning and the end of a set: made whole or not at all, taken over, ended by its holder.

A set belongs to the task try whose id its owner carries as holder. A retry, a restarted worker
or a second scheduler finds the set by its name and takes it over; who no longer holds it can
end nothing.
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
from aerotrain_airflow.controller.history import History
from aerotrain_airflow.controller.situation import Seen

Manifest = Mapping[str, Any]
T = TypeVar("T")

#: Requests that are under way at once while a set is made.
_AT_ONCE = 16

#: Seconds that a set which was told to go may take: the pods' grace and the node's answer. A pod
#: that is there still is on a node that does not answer, and is dropped by force.
_GOING = 20.0

#: Seconds between two looks whether it is gone.
_LOOK_EVERY = 0.5


async def check_cluster(cluster: Cluster, plans: Sequence[PodPlan]) -> None:
    """Ask for every permission, and have the API try each kind of object dry.

    Raises:
        FinalError: what is missing, and who can mend it.
        TemporaryError: the API is away or has no room.
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

    Of two tries at the same moment, the API lets one create, and one adopt.
    """

    def __init__(self, cluster: Cluster, plan: PodPlan, holder: str) -> None:
        self._cluster = cluster
        self._plan = plan
        self._holder = holder

    async def find(self) -> Found | None:
        """The group of the job's name; a half made one of this very attempt is none.

        Raises:
            FinalError: something else has the name.
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
        """Make all of it, or the rest of what was made; None where its name was taken."""
        owner = await _make_owner(self._cluster, self._plan, self._holder)
        if owner is None:
            owner = await self._cluster.get("ConfigMap", self._plan.job.name)
            if owner is None or not self._is_half_made(owner):
                return None
        return str(await _make_rest(self._cluster, self._plan, owner))

    async def adopt(self, found: Found) -> bool:
        """Make the group this try's, unless it was changed at the same moment."""
        owner = await self._owner_of(found)
        if owner is None or not await _hold(self._cluster, owner, self._holder):
            return False
        adopted = Event(event=EventType.ADOPT, at=time.time(), because=self._holder)
        log = EventLog(self._cluster, owner)
        with suppress(GoneError):
            while not await log.append([adopted]):
                pass  # what follows it has just added something
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
        """Whether it is this attempt's own, which was interrupted while it was made."""
        marks = annotations(owner)
        return (
            is_an_owner(owner, self._plan.job.name)
            and marks.get(ATTEMPT) == self._plan.attempt
            and marks.get(STARTED) != "true"
            and "deletionTimestamp" not in owner["metadata"]
            and _is_held(owner, self._holder)
        )

    def _matches(self, owner: Manifest) -> bool:
        """Whether the group was made whole, and of the same description."""
        marks = annotations(owner)
        return (
            "deletionTimestamp" not in owner["metadata"]
            and marks.get(STARTED) == "true"
            and marks.get(DESCRIPTION) == self._plan.description
        )

    async def _seen(self, owner: Manifest, events: Sequence[Event]) -> Seen:
        """What is seen now of every replica of the owner's group."""
        address, began = _address(self._plan, owner), time.time()
        pods_of = {address.pod(name): name for name in self._plan.job.names()}
        observed = ObservedSet(pods_of, address.uid, lambda name: History.of(name, events).restarts)
        labels = f"{JOB_LABEL}={self._plan.job.name}"
        pods, _ = await self._cluster.list("Pod", labels=labels)
        changes = [change for pod in pods if (change := observed.take(pod)) is not None]
        observed.looked_at_all({change.name for change in changes}, began)
        return observed.seen


async def end(cluster: Cluster, address: Address, holder: str) -> None:
    """Delete the set, if it is the one at ``address`` and still ``holder``'s."""
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
                if error.status != 409:  # changed meanwhile: perhaps by its next holder
                    raise


async def _refuse_another(cluster: Cluster, manifest: Manifest) -> None:
    """Refuse to start where something has the manifest's name that is not of the job's making."""
    name, job = manifest["metadata"]["name"], manifest["metadata"]["labels"][JOB_LABEL]
    there = await cluster.get(manifest["kind"], name)
    is_ours = is_an_owner if manifest["kind"] == "ConfigMap" else is_of_a_job
    if there is not None and not is_ours(there, job):
        raise FinalError(in_the_way(there, cluster.namespace))


def owner_of(plan: PodPlan, holder: str) -> dict[str, Any]:
    """The owner of the set of that plan, as a task makes it, which is its ``holder``."""
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
    """The owner, or None where its name is taken."""
    try:
        return await cluster.create(owner_of(plan, holder))
    except ApiError as error:
        if error.reason == "AlreadyExists":
            return None
        raise


async def _make_rest(cluster: Cluster, plan: PodPlan, owner: Manifest) -> Address:
    """All that the owner owns: what pods need first, and then all pods at once."""
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
    except BaseException:  # half a set is of no use to anybody
        await cluster.delete("ConfigMap", plan.job.name, uid_of(owner))
        raise
    return _address(plan, owner)


def _address(plan: PodPlan, owner: Manifest) -> Address:
    return Address(plan.namespace, plan.job.name, annotations(owner)[ATTEMPT], uid_of(owner))


async def _make(cluster: Cluster, manifest: Manifest, owner: Manifest) -> None:
    """One object of the set; one of that name which is not the owner's is on its way out."""
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
    """Make the set ``holder``'s; False where somebody else changed it at the same moment."""
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
    """Delete a set that cannot be taken over, and wait until its names are free."""
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
    """The results of all, done at once; the first failure ends the others and is raised."""
    try:
        async with asyncio.TaskGroup() as group:
            tasks = [group.create_task(work) for work in works]
    except BaseExceptionGroup as errors:
        raise errors.exceptions[0] from None
    return [task.result() for task in tasks]


@asynccontextmanager
async def errors_translated(cluster: Cluster) -> AsyncIterator[None]:
    """Say in our own two kinds of failure what the API refused."""
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
    """One manifest of each kind, and of the pods one a role: the others are like it."""
    alike = {
        (each["kind"], each["metadata"]["labels"].get(ROLE_LABEL)): each
        for each in (plan.owner, *plan.others)
    }
    return alike.values()


def _is_held(owner: Manifest, holder: str) -> bool:
    return annotations(owner).get(HOLDER) == holder
