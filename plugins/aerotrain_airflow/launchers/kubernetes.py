"""The launcher of pods: every replica a pod, all of them owned by one ConfigMap.

Nothing is installed in the cluster. What a set is lies in its ConfigMap (the job's description,
which launch made it, whose it is now), so that any process that may read it can follow and end
the set, and deleting it takes all the rest along, also when nobody is left to do it.
"""

import asyncio
from collections.abc import Callable, Coroutine, Sequence
from concurrent.futures import ThreadPoolExecutor
from logging import getLogger
from typing import Any, TypeVar

from aerotrain.contract.job import Job
from aerotrain.contract.ledger import Entry
from aerotrain_airflow.launchers.base import Emit
from aerotrain_airflow.pods.address import Address
from aerotrain_airflow.pods.cluster import Cluster
from aerotrain_airflow.pods.following import Following
from aerotrain_airflow.pods.identity import is_at
from aerotrain_airflow.pods.lifecycle import end, refuse_what_is_refused, start
from aerotrain_airflow.pods.plan import PodPlan, PodSettings, plan_pods
from aerotrain_airflow.pods.renewal import KeptLedger
from aerotrain_airflow.pods.trigger import JobTrigger
from aerotrain_airflow.recovery.ended import Ended

T = TypeVar("T")

#: Seconds that an API which is away is asked again before a task fails, for Airflow to retry.
PATIENCE = 60.0


class KubernetesLauncher:
    """Runs replicas as pods of one namespace.

    ``holder`` is the task try on whose behalf this is: it may end the sets that it started or
    took over, and no others. ``conn_id`` is Airflow's connection to the cluster.
    """

    def __init__(self, settings: PodSettings, conn_id: str, holder: str) -> None:
        self._settings = settings
        self._conn_id = conn_id
        self._holder = holder

    def plan(self, job: Job, attempt: str) -> PodPlan:
        """The manifests, as a value."""
        return plan_pods(job, attempt, self._settings)

    def check(self, plans: Sequence[PodPlan]) -> None:
        """Ask the API for every permission that is needed, and to try the manifests dry.

        Raises:
            FinalError: a permission, the namespace or something that pods need is missing.
            TemporaryError: the API does not answer, or has no room.
        """
        namespace = self._settings.namespace
        self._do(namespace, lambda cluster: refuse_what_is_refused(cluster, plans))

    def start(self, plan: PodPlan) -> str:
        """Make all objects of the plan, or take over the same job's set of an earlier try."""
        return str(self._do(plan.namespace, lambda cluster: start(cluster, plan, self._holder)))

    def watch(
        self, address: str, emit: Emit, *, until: float | None, at_most: float | None = None
    ) -> Ended | None:
        """Follow the set from here; the trigger does the same while its task is deferred."""
        where = Address.parse(address)
        log = getLogger(__name__)

        async def follow(cluster: Cluster) -> Ended | None:
            following = Following(cluster, where, emit=emit, say=log.info, until=until)
            try:
                async with asyncio.timeout(at_most):
                    return await following.run()
            except TimeoutError:
                return None

        return self._do(where.namespace, follow)

    def trigger(self, address: str, until: float | None) -> JobTrigger:
        """What follows the set while its task is deferred."""
        return JobTrigger(address, self._conn_id, self._holder, until)

    def ledger(self, address: str) -> list[Entry]:
        """What happened to the set, as its owner keeps it."""
        where = Address.parse(address)

        async def kept(cluster: Cluster) -> list[Entry]:
            owner = await cluster.get("ConfigMap", where.name)
            if owner is None or not is_at(owner, where):
                return []
            return KeptLedger(cluster, owner).entries

        return self._do(where.namespace, kept)

    def stop(self, address: str) -> None:
        """Have the set deleted if it is still this try's; its pods leave within seconds."""
        where = Address.parse(address)
        self._do(where.namespace, lambda cluster: end(cluster, where, self._holder))

    def _do(self, namespace: str, act: Callable[[Cluster], Coroutine[Any, Any, T]]) -> T:
        """Run ``act`` on the cluster, in a thread of its own: a signal may come in at any time."""

        async def connected() -> T:
            async with Cluster.of(self._conn_id, namespace, patience=PATIENCE) as cluster:
                return await act(cluster)

        with ThreadPoolExecutor(1) as thread:
            return thread.submit(asyncio.run, connected()).result()
