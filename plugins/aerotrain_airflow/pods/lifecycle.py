"""The beginning and the end of a set: made whole or not at all, taken over, ended by its holder.

A set belongs to the task try whose id its owner carries as holder. A retry, a restarted worker
or a second scheduler finds the set by its name and takes it over; who no longer holds it can
end nothing.
"""

import asyncio
import time
from collections.abc import AsyncIterator, Coroutine, Iterable, Mapping, Sequence
from contextlib import asynccontextmanager
from typing import Any, TypeVar

from aerotrain.contract.errors import AerotrainError, FinalError, TemporaryError
from aerotrain.contract.status import State
from aerotrain_airflow.pods.access import needed
from aerotrain_airflow.pods.address import (
    ATTEMPT,
    DESCRIPTION,
    HOLDER,
    JOB_LABEL,
    ROLE_LABEL,
    STARTED,
    Address,
    annotations,
)
from aerotrain_airflow.pods.cluster import ApiError, AwayError, Cluster
from aerotrain_airflow.pods.identity import (
    in_the_way,
    is_an_owner,
    is_at,
    is_of_a_job,
    is_owned_by,
    reference_to,
    uid_of,
)
from aerotrain_airflow.pods.observed import ObservedSet
from aerotrain_airflow.pods.plan import PodPlan
from aerotrain_airflow.pods.renewal import TEMPLATES, KeptLedger, delete_pod, templates
from aerotrain_airflow.recovery.ended import Ended
from aerotrain_airflow.recovery.recovery import Recovery

Manifest = Mapping[str, Any]
T = TypeVar("T")

#: Requests that are under way at once while a set is made.
_AT_ONCE = 16

#: Seconds that a set which was told to go may take: the pods' grace and the node's answer. A pod
#: that is there still is on a node that does not answer, and is dropped by force.
_GOING = 20.0

#: Seconds between two looks whether it is gone.
_LOOK_EVERY = 0.5


async def refuse_what_is_refused(cluster: Cluster, plans: Sequence[PodPlan]) -> None:
    """Ask for every permission, and have the API try each kind of object dry.

    Raises:
        FinalError: what is missing, and who can mend it.
        TemporaryError: the API is away or has no room.
    """
    async with _explained(cluster):
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


async def start(cluster: Cluster, plan: PodPlan, holder: str) -> Address:
    """Make the set, or take over the one that is there; afterwards it is ``holder``'s.

    Raises:
        FinalError, TemporaryError: it could not be made; nothing of it stays.
    """
    async with _explained(cluster):
        while True:
            owner = await _make_owner(cluster, plan, holder)
            if owner is not None:
                return await _make_rest(cluster, plan, owner)
            found = await cluster.get("ConfigMap", plan.job.name)
            if found is None:
                continue
            if not is_an_owner(found, plan.job.name):
                raise FinalError(in_the_way(found, plan.namespace))
            if await _can_be_taken_over(cluster, plan, found):
                if await _hold(cluster, found, holder):
                    return _address(plan, found)
            elif annotations(found).get(ATTEMPT) == plan.attempt and _is_held(found, holder):
                return await _make_rest(cluster, plan, found)  # our own, half made
            else:
                await _end_and_wait(cluster, found)


async def end(cluster: Cluster, address: Address, holder: str) -> None:
    """Delete the set, if it is the one at ``address`` and still ``holder``'s."""
    async with _explained(cluster):
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
    return {
        **plan.owner,
        "metadata": {**metadata, "annotations": marks},
        "data": {**plan.owner["data"], TEMPLATES: templates(pods)},
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


async def _can_be_taken_over(cluster: Cluster, plan: PodPlan, owner: Manifest) -> bool:
    """Whether the set was made whole, of the same description, and can come to a good end.

    Replicas that were lost while nobody followed the set come back when somebody does.
    """
    marks = annotations(owner)
    if (
        "deletionTimestamp" in owner["metadata"]
        or marks.get(STARTED) != "true"
        or marks.get(DESCRIPTION) != plan.description
    ):
        return False
    recovery = Recovery(plan.job, KeptLedger(cluster, owner).entries, lambda _entry: None)
    address, now = _address(plan, owner), time.time()
    pods_of = {address.pod(name): name for name in plan.job.names()}
    observed = ObservedSet(pods_of, address.uid, recovery.generation)
    pods, _ = await cluster.list("Pod", labels=f"{JOB_LABEL}={plan.job.name}")
    changes = [change for pod in pods if (change := observed.take(pod)) is not None]
    observed.looked_at_all({change.name for change in changes}, now)
    observed.making(observed.behind(), now)  # which who follows the set will see to
    seen = observed.seen
    decision = recovery.decide(seen, now)
    if isinstance(decision, Ended):
        return decision.state is State.SUCCEEDED
    return any(not each.state.ended for each in seen.values())


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
async def _explained(cluster: Cluster) -> AsyncIterator[None]:
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
