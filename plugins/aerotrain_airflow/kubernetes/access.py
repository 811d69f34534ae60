"""Whether the cluster lets the backend run a job: permissions, a dry run, and errors explained.

``deploy/role.yaml`` grants exactly the permissions of this table; a test compares the two.
"""

from collections import Counter
from collections.abc import AsyncIterator, Iterable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import asdict, dataclass
from typing import Any

from aerotrain.contract.errors import AerotrainError, FinalError, TemporaryError
from aerotrain.launch.backend import RetryLaterError
from aerotrain_airflow.kubernetes.cluster import ApiError, Cluster, UnavailableError, together
from aerotrain_airflow.kubernetes.identity import (
    JOB_LABEL,
    ROLE_LABEL,
    WORKLOAD,
    annotations,
    in_the_way,
    is_an_owner,
    is_of_a_job,
)
from aerotrain_airflow.kubernetes.kueue import check_queue
from aerotrain_airflow.kubernetes.plan import PodPlan
from aerotrain_airflow.kubernetes.quota import too_small

Manifest = Mapping[str, Any]


@dataclass(frozen=True)
class Access:
    """One verb on one kind of object in a namespace."""

    verb: str
    group: str
    resource: str
    subresource: str = ""

    def __str__(self) -> str:
        resource = f"{self.resource}/{self.subresource}" if self.subresource else self.resource
        return f"{self.verb} {resource}{f' of {self.group}' if self.group else ''}"


REQUIRED: tuple[Access, ...] = (
    # The owner: created first, read to find its holder, annotated, and deleted with all it owns.
    Access("create", "", "configmaps"),
    Access("get", "", "configmaps"),
    Access("patch", "", "configmaps"),
    Access("delete", "", "configmaps"),
    # What the pods need. Read if the name is taken, to find out whether by this group or by one
    # that is being deleted.
    Access("create", "", "services"),
    Access("get", "", "services"),
    Access("create", "networking.k8s.io", "networkpolicies"),
    Access("get", "networking.k8s.io", "networkpolicies"),
    # The replicas. Deleted individually for a restart, or if a node does not respond.
    Access("create", "", "pods"),
    Access("get", "", "pods"),
    Access("list", "", "pods"),
    Access("watch", "", "pods"),
    Access("delete", "", "pods"),
    Access("get", "", "pods", "log"),
    # Why a pod failed or is waiting.
    Access("list", "", "events"),
)

#: Additional permissions for a Kueue queue: to check that it exists, to say why a group waits, to
#: end its Workload, so that Kueue frees its quota and its pods, and to free a pod on a node that
#: does not respond.
WITH_KUEUE: tuple[Access, ...] = (
    Access("get", "kueue.x-k8s.io", "localqueues"),
    Access("get", "kueue.x-k8s.io", "workloads"),
    Access("delete", "kueue.x-k8s.io", "workloads"),
    Access("patch", "", "pods"),
)

#: To find out before the start whether a quota is too small. Without it, the start fails.
OPTIONAL = Access("list", "", "resourcequotas")


async def check_cluster(cluster: Cluster, plans: Sequence[PodPlan]) -> None:
    """Check every permission, and create each kind of object as a dry run.

    Raises:
        FinalError: something is missing; the message says who can fix it.
        TemporaryError: the API is unavailable or lacks resources.
    """
    needs = list(dict.fromkeys(need for plan in plans for need in _needed(plan)))
    granted = await together(cluster.may(**asdict(need)) for need in needs)
    missing = [f"{need}" for need, may in zip(needs, granted, strict=True) if not may]
    if missing:
        raise FinalError(
            f"Airflow may not {', '.join(missing)} in namespace {cluster.namespace}; have "
            "deploy/role.yaml, and with a queue its file in deploy/, applied there and bound to "
            "the account that Airflow uses"
        )
    may_list = await cluster.may(**asdict(OPTIONAL))
    quotas = await cluster.list("ResourceQuota") if may_list else []
    for plan in plans:
        made = [await _dry_run(cluster, manifest) for manifest in _one_of_each(plan)]
        pods = [each for each in made if each["kind"] == "Pod"]
        _check_quotas(plan, pods, quotas)
        await check_queue(cluster, pods)


async def _dry_run(cluster: Cluster, manifest: Manifest) -> Manifest:
    """The object that would be created, with the defaults of the cluster."""
    try:
        return await cluster.create(manifest, dry_run=True)
    except ApiError as error:
        if error.reason != "AlreadyExists":
            raise
        await _check_owned(cluster, manifest)
    return manifest


def _check_quotas(plan: PodPlan, pods: Sequence[Manifest], quotas: Sequence[Manifest]) -> None:
    """Fail if a quota can never admit all pods; ``pods`` has one of each role."""
    counts = Counter(each["metadata"]["labels"].get(ROLE_LABEL) for each in plan.others)
    roles = [(pod, counts[pod["metadata"]["labels"][ROLE_LABEL]]) for pod in pods]
    for name, key, needed, hard in too_small(roles, quotas):
        raise FinalError(
            f"the pods of {plan.job.name} need {needed} {key} together, and the quota {name} of "
            f"namespace {plan.namespace} allows {hard}; ask for less or for fewer replicas, or "
            "have the quota raised"
        )


def _needed(plan: PodPlan) -> tuple[Access, ...]:
    return REQUIRED + (WITH_KUEUE if WORKLOAD in annotations(plan.owner) else ())


def _one_of_each(plan: PodPlan) -> Iterable[Manifest]:
    """One manifest of each kind, and one pod per role: the others are like these."""
    alike = {
        (each["kind"], each["metadata"]["labels"].get(ROLE_LABEL)): each
        for each in (plan.owner, *plan.others)
    }
    return alike.values()


async def _check_owned(cluster: Cluster, manifest: Manifest) -> None:
    """Fail if an object that does not belong to the job has the manifest's name."""
    name, job = manifest["metadata"]["name"], manifest["metadata"]["labels"][JOB_LABEL]
    there = await cluster.get(manifest["kind"], name)
    is_ours = is_an_owner if manifest["kind"] == "ConfigMap" else is_of_a_job
    if there is not None and not is_ours(there, job):
        raise FinalError(in_the_way(there, cluster.namespace))


@asynccontextmanager
async def errors_translated(cluster: Cluster) -> AsyncIterator[None]:
    """Translate errors of the API into the two kinds of error of this project."""
    try:
        yield
    except ApiError as error:
        raise _explained(error, cluster.namespace) from error
    except UnavailableError as error:
        raise RetryLaterError(f"the Kubernetes API does not answer: {error}") from error


def _explained(error: ApiError, namespace: str) -> AerotrainError:
    if error.is_lack_of_room:
        return RetryLaterError(
            f"namespace {namespace} has no room for the job: {error.message}; wait, ask for "
            "less, or have the quota raised"
        )
    if "failed quota" in error.message:
        return FinalError(
            f"a quota of namespace {namespace} limits what the pods do not set: {error.message}; "
            "set it for the container `replica` in a pod template, or have a LimitRange set a "
            "default (deploy/README.md, Quotas)"
        )
    if error.is_missing_permission:
        return TemporaryError(
            f"the cluster has not allowed it for a while: {error.message}; have deploy/role.yaml "
            "applied again"
        )
    if error.status == 403:
        return FinalError(
            f"the cluster does not allow it: {error.message}; see deploy/ for what is needed"
        )
    if error.status == 404 and error.kind == "namespaces":
        return FinalError(
            f"there is no namespace {namespace}; create it, or set [aerotrain] namespace"
        )
    if error.status in (400, 404, 422):
        return FinalError(f"the cluster rejects the job's objects: {error.message}")
    return TemporaryError(f"the cluster failed a request for the job's objects: {error}")
