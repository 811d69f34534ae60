"""The Kubernetes backend: a pod per replica, and one ConfigMap that owns the whole group.

It installs nothing in the cluster. All state of a group is in its ConfigMap (the job's description,
the attempt, the holder). So any process that may read it can follow and end the group, and deleting
it deletes all the rest, even if no process of this project is running.
"""

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from aerotrain.contract.event_log import Event
from aerotrain.contract.job import Job
from aerotrain.launch.backend import Emit, Report
from aerotrain_airflow.kubernetes.access import check_cluster
from aerotrain_airflow.kubernetes.cluster import Cluster
from aerotrain_airflow.kubernetes.group import PodGroup
from aerotrain_airflow.kubernetes.identity import Handle
from aerotrain_airflow.kubernetes.lifecycle import PodClaim, end, end_pods, events_of, read_owner
from aerotrain_airflow.kubernetes.plan import PodPlan, PodSettings, plan_pods
from aerotrain_airflow.kubernetes.template import read_template

if TYPE_CHECKING:
    from aerotrain_airflow.settings import Settings

#: Seconds for which requests are retried while the API is unavailable. After them the task fails,
#: and Airflow's retries apply.
RETRY_FOR = 60.0


def from_settings(settings: "Settings", holder: str) -> "KubernetesBackend":
    """The backend that a task try uses.

    Raises:
        FinalError: the pod template cannot be read.
    """
    template = settings.pod_template_file
    pods = PodSettings(
        namespace=settings.namespace,
        image=settings.image,
        store_secret=settings.store_secret,
        service_account=settings.service_account,
        queue=settings.queue,
        pod_template=read_template(Path(template)) if template else {},
    )
    return KubernetesBackend(pods, settings.kubernetes_conn_id, holder)


class KubernetesBackend:
    """Runs replicas as pods of one namespace.

    ``holder`` is the task try on whose behalf this runs: it may end only the groups that it started
    or adopted. ``conn_id`` is Airflow's connection to the cluster. ``retry_for`` is for how many
    seconds an unavailable API is retried; None means ``RETRY_FOR``.
    """

    def __init__(
        self,
        settings: PodSettings,
        conn_id: str,
        holder: str,
        retry_for: float | None = None,
    ) -> None:
        self._settings = settings
        self._conn_id = conn_id
        self._holder = holder
        self._retry_for = RETRY_FOR if retry_for is None else retry_for

    def plan(self, job: Job, attempt: str) -> PodPlan:
        """The manifests, as a value."""
        return plan_pods(job, attempt, self._settings)

    async def check(self, plans: Sequence[PodPlan]) -> None:
        """Check every permission that is needed, and create the manifests as a dry run.

        Raises:
            FinalError: a permission, the namespace or an object that pods need is missing.
            TemporaryError: the API does not respond, or lacks resources.
        """
        async with self._cluster(self._settings.namespace) as cluster:
            await check_cluster(cluster, plans)

    @asynccontextmanager
    async def claim(self, plan: PodPlan) -> AsyncIterator[PodClaim]:
        """Create or adopt the group of the plan; of two concurrent tries, one creates it."""
        async with self._cluster(plan.namespace) as cluster:
            yield PodClaim(cluster, plan, self._holder)

    @asynccontextmanager
    async def open(self, handle: str, emit: Emit, say: Report) -> AsyncIterator[PodGroup]:
        """Follow the group from here; a trigger does the same while its task is deferred."""
        async with self._at(handle) as (cluster, where):
            owner = await read_owner(cluster, where)
            async with PodGroup(cluster, owner, self._holder, emit, say) as group:
                yield group

    async def events(self, handle: str) -> list[Event]:
        """The events of the group, from its owner."""
        async with self._at(handle) as (cluster, where):
            owner = await cluster.get("ConfigMap", where.name)
            return events_of(owner) if owner and where.is_of(owner) else []

    async def end_pods(self, handle: str) -> None:
        """Delete the pods of a group whose end is recorded, if this task try holds it.

        The rest of the group remains for the task, which may wait long for a worker's slot.
        """
        async with self._at(handle) as (cluster, where):
            await end_pods(cluster, where, self._holder)

    async def delete(self, handle: str) -> None:
        """Delete the group if this task try still holds it; its pods end within seconds."""
        async with self._at(handle) as (cluster, where):
            await end(cluster, where, self._holder)

    def _cluster(self, namespace: str) -> Cluster:
        return Cluster(self._conn_id, namespace, retry_for=self._retry_for)

    @asynccontextmanager
    async def _at(self, handle: str) -> AsyncIterator[tuple[Cluster, Handle]]:
        where = Handle.parse(handle)
        async with self._cluster(where.namespace) as cluster:
            yield cluster, where
