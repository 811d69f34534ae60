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
from aerotrain_airflow.pods.observed import ObservedSet
from aerotrain_airflow.pods.plan import PodPlan
from aerotrain_airflow.pods.renewal import TEMPLATES, KeptLedger, templates
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
            if await _can_be_taken_over(cluster, plan, found):
                if await _hold(cluster, found, holder):
                    attempt = annotations(found)[ATTEMPT]
                    return Address(plan.namespace, plan.job.name, attempt)
            elif annotations(found).get(ATTEMPT) == plan.attempt and _is_held(found, holder):
                return await _make_rest(cluster, plan, found)  # our own, half made
            else:
                await _end_and_wait(cluster, found)


async def end(cluster: Cluster, address: Address, holder: str) -> None:
    """Delete the set, if it is the one at ``address`` and still ``holder``'s."""
    async with _explained(cluster):
        while True:
            owner = await cluster.get("ConfigMap", address.name)
            if (
                owner is None
                or annotations(owner).get(ATTEMPT) != address.attempt
                or not _is_held(owner, holder)
            ):
                return
            try:
                await cluster.delete("ConfigMap", address.name, conditions=_as_seen(owner))
                return
            except ApiError as error:
                if error.status != 409:  # changed meanwhile: perhaps by its next holder
                    raise


async def _make_owner(cluster: Cluster, plan: PodPlan, holder: str) -> dict[str, Any] | None:
    """The owner, or None where its name is taken."""
    metadata = plan.owner["metadata"]
    marks = {**metadata["annotations"], HOLDER: holder}
    pods = [each for each in plan.others if each["kind"] == "Pod"]
    owner = {
        **plan.owner,
        "metadata": {**metadata, "annotations": marks},
        "data": {**plan.owner["data"], TEMPLATES: templates(pods)},
    }
    try:
        return await cluster.create(owner)
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
        await cluster.patch(
            "ConfigMap", plan.job.name, {"metadata": {"annotations": {STARTED: "true"}}}
        )
    except BaseException:  # half a set is of no use to anybody
        await cluster.delete(
            "ConfigMap", plan.job.name, conditions={"uid": owner["metadata"]["uid"]}
        )
        raise
    return Address(plan.namespace, plan.job.name, plan.attempt)


async def _make(cluster: Cluster, manifest: Manifest, owner: Manifest) -> None:
    """One object of the set; one of that name which is not the owner's is on its way out."""
    uid = owner["metadata"]["uid"]
    reference = {
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "name": owner["metadata"]["name"],
        "uid": uid,
    }
    owned = {**manifest, "metadata": {**manifest["metadata"], "ownerReferences": [reference]}}
    until = time.monotonic() + _GOING
    while True:
        try:
            await cluster.create(owned)
            return
        except ApiError as error:
            if error.reason != "AlreadyExists":
                raise
            name = manifest["metadata"]["name"]
            there = await cluster.get(manifest["kind"], name)
            owners = there["metadata"].get("ownerReferences") or [] if there else []
            if any(each["uid"] == uid for each in owners):
                return
            if time.monotonic() > until:
                raise TemporaryError(
                    f"there is a {manifest['kind']} {name} in {cluster.namespace} that is not "
                    "of this set; delete it"
                ) from error
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
    observed, now = ObservedSet(plan.job.names(), recovery.generation), time.time()
    pods, _ = await cluster.list("Pod", labels=f"{JOB_LABEL}={plan.job.name}")
    changes = [change for pod in pods if (change := observed.take(pod)) is not None]
    observed.looked_at_all({change.name for change in changes}, now)
    observed.making(observed.behind(), now)  # which who follows the set will see to
    seen = observed.seen
    decision = recovery.decide(seen, now)
    if isinstance(decision, Ended):
        return decision.state is State.SUCCEEDED
    can_come_back = decision is None or TEMPLATES in owner["data"]
    return can_come_back and any(not each.state.ended for each in seen.values())


async def _hold(cluster: Cluster, owner: Manifest, holder: str) -> bool:
    """Make the set ``holder``'s; False where somebody else changed it at the same moment."""
    metadata = {
        "resourceVersion": owner["metadata"]["resourceVersion"],
        "annotations": {HOLDER: holder},
    }
    try:
        await cluster.patch("ConfigMap", owner["metadata"]["name"], {"metadata": metadata})
    except ApiError as error:
        if error.status in (404, 409):
            return False
        raise
    return True


async def _end_and_wait(cluster: Cluster, owner: Manifest) -> None:
    """Delete a set that cannot be taken over, and wait until its names are free."""
    name = owner["metadata"]["name"]
    await cluster.delete("ConfigMap", name, conditions={"uid": owner["metadata"]["uid"]})
    until = time.monotonic() + _GOING
    while True:
        pods, _ = await cluster.list("Pod", labels=f"{JOB_LABEL}={name}")
        if not pods:
            return
        if time.monotonic() > until:
            for pod in pods:
                await cluster.delete("Pod", pod["metadata"]["name"], force=True)
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


def _as_seen(owner: Manifest) -> dict[str, str]:
    return {each: owner["metadata"][each] for each in ("uid", "resourceVersion")}


def _is_held(owner: Manifest, holder: str) -> bool:
    return annotations(owner).get(HOLDER) == holder
