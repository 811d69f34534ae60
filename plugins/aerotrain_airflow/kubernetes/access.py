"""Whether the cluster lets the backend run a job: permissions, and a dry run.

``deploy/role.yaml`` grants exactly the permissions of this table; a test compares the two.
"""

from collections.abc import Sequence
from typing import NamedTuple

from aerotrain.contract.errors import FinalError
from aerotrain_airflow.kubernetes.cluster import Cluster, together
from aerotrain_airflow.kubernetes.identity import ROLE_LABEL
from aerotrain_airflow.kubernetes.plan import PodPlan


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


async def check_cluster(cluster: Cluster, plans: Sequence[PodPlan]) -> None:
    """Check every permission, and create each kind of object as a dry run.

    Raises:
        FinalError: something is missing; the message says who can fix it.
        TemporaryError: the API is unavailable or lacks resources.
    """
    queues = [plan.queue for plan in plans if plan.queue is not None]
    of_queues = (Access(*need) for queue in queues for need in queue.permissions)
    needs = list(dict.fromkeys((*REQUIRED, *of_queues)))
    granted = await together(cluster.may(**need._asdict()) for need in needs)
    missing = [f"{need}" for need, may in zip(needs, granted, strict=True) if not may]
    if missing:
        raise FinalError(
            f"Airflow may not {', '.join(missing)} in namespace {cluster.namespace}; have "
            "deploy/role.yaml, and with a queue its file in deploy/, applied there and bound to "
            "the account that Airflow uses"
        )
    for plan in plans:
        # One manifest of each kind, and one pod per role: the others are like these. A name may be
        # taken by an earlier group, which is adopted or deleted at the start.
        alike = {
            (each["kind"], each["metadata"]["labels"].get(ROLE_LABEL)): each
            for each in (plan.owner, *plan.others)
        }
        for manifest in alike.values():
            await cluster.create(manifest, dry_run=True)
    for queue in queues:
        await queue.check(cluster)
