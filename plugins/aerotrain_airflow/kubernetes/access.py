"""Whether the cluster lets the backend run a job: permissions, quotas, and a dry run.

``deploy/role.yaml`` grants exactly the permissions of this table; a test compares the two.
"""

from collections import Counter
from collections.abc import AsyncIterator, Iterable, Mapping, Sequence
from contextlib import asynccontextmanager
from decimal import Decimal
from typing import Any, NamedTuple

from kubernetes.utils.quantity import parse_quantity

from aerotrain.contract.errors import AerotrainError, FinalError, TemporaryError
from aerotrain.launch.backend import RetryLaterError
from aerotrain_airflow.kubernetes.cluster import ApiError, Cluster, UnavailableError, together
from aerotrain_airflow.kubernetes.identity import (
    JOB_LABEL,
    ROLE_LABEL,
    in_the_way,
    is_an_owner,
    is_of_a_job,
)
from aerotrain_airflow.kubernetes.plan import PodPlan

Manifest = Mapping[str, Any]


class Access(NamedTuple):
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

#: To find out before the start whether a quota is too small. Without it, the start fails.
OPTIONAL = Access("list", "", "resourcequotas")


#: The keys of a quota that count pods. All others of pods are of the form ``limits.RESOURCE`` or
#: ``requests.RESOURCE``; these three are short for requests.
_COUNTS = ("pods", "count/pods")
_REQUESTS = ("cpu", "memory", "ephemeral-storage")


async def check_cluster(cluster: Cluster, plans: Sequence[PodPlan]) -> None:
    """Check every permission, and create each kind of object as a dry run.

    Raises:
        FinalError: something is missing; the message says who can fix it.
        TemporaryError: the API is unavailable or lacks resources.
    """
    needs = [Access(*need) for plan in plans for need in (*REQUIRED, *plan.queue.permissions)]
    needs = list(dict.fromkeys(needs))
    granted = await together(cluster.may(**need._asdict()) for need in needs)
    missing = [f"{need}" for need, may in zip(needs, granted, strict=True) if not may]
    if missing:
        raise FinalError(
            f"Airflow may not {', '.join(missing)} in namespace {cluster.namespace}; have "
            "deploy/role.yaml, and with a queue its file in deploy/, applied there and bound to "
            "the account that Airflow uses"
        )
    may_list = await cluster.may(**OPTIONAL._asdict())
    quotas = await cluster.list("ResourceQuota") if may_list else []
    for plan in plans:
        # One manifest of each kind, and one pod per role: the others are like these.
        alike = {
            (each["kind"], each["metadata"]["labels"].get(ROLE_LABEL)): each
            for each in (plan.owner, *plan.others)
        }
        made = [await _dry_run(cluster, manifest) for manifest in alike.values()]
        check_quotas(plan, [each for each in made if each["kind"] == "Pod"], quotas)
        await plan.queue.check(cluster)


async def _dry_run(cluster: Cluster, manifest: Manifest) -> Manifest:
    """The object that would be created, with the defaults of the cluster.

    Raises:
        FinalError: an object that does not belong to the job has its name.
    """
    made = await cluster.create(manifest, dry_run=True)
    if made is not None:
        return made
    name, job = manifest["metadata"]["name"], manifest["metadata"]["labels"][JOB_LABEL]
    there = await cluster.get(manifest["kind"], name)
    is_ours = is_an_owner if manifest["kind"] == "ConfigMap" else is_of_a_job
    if there is not None and not is_ours(there, job):
        raise FinalError(in_the_way(there, cluster.namespace))
    return manifest


def check_quotas(plan: PodPlan, pods: Sequence[Manifest], quotas: Iterable[Manifest]) -> None:
    """Fail if a quota can never admit all pods of the plan at once.

    ``pods`` has one of each role, with all defaults that the API sets. What other pods use now is
    not counted, because it may be free at the start. Quotas for some pods only, with scopes, are
    left out.

    Raises:
        FinalError: one is too small.
    """
    counts = Counter(pod["metadata"]["labels"][ROLE_LABEL] for pod in plan.pods)
    for quota in quotas:
        if quota["spec"].get("scopes") or quota["spec"].get("scopeSelector"):
            continue
        for key, hard in (quota["spec"].get("hard") or {}).items():
            needed = sum(
                (
                    _use(pod["spec"], key) * counts[pod["metadata"]["labels"][ROLE_LABEL]]
                    for pod in pods
                ),
                Decimal(0),
            )
            if needed > parse_quantity(hard):
                is_bytes = key.endswith(("memory", "storage"))
                shown = f"{needed / 2**20:.0f}Mi" if is_bytes else f"{needed.normalize():f}"
                raise FinalError(
                    f"the pods of {plan.job.name} need {shown} {key} together, and the quota "
                    f"{quota['metadata']['name']} of namespace {plan.namespace} allows {hard}; ask "
                    "for less or for fewer replicas, or have the quota raised"
                )


def _use(spec: Manifest, key: str) -> Decimal:
    """What one pod uses of the quota's ``key``; 0 for a key that does not concern pods."""
    if key in _COUNTS:
        return Decimal(1)
    part, _, resource = (f"requests.{key}" if key in _REQUESTS else key).partition(".")
    if part not in ("requests", "limits"):
        return Decimal(0)

    def amount(container: Manifest) -> Decimal:
        amounts = (container.get("resources") or {}).get(part) or {}
        return Decimal(parse_quantity(amounts.get(resource, 0)))

    first = max(map(amount, spec.get("initContainers") or ()), default=Decimal(0))
    return max(first, sum(map(amount, spec["containers"]), Decimal(0)))


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
