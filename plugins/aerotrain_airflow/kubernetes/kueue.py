"""Kueue, the queue that admits the pods of a group: all that concerns it is in this module."""

import hashlib
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from aerotrain.contract.errors import FinalError, SpecError
from aerotrain_airflow.kubernetes.identity import ATTEMPT, QUEUE, Handle, annotations, uid_of

if TYPE_CHECKING:
    from aerotrain_airflow.kubernetes.cluster import Cluster

Manifest = Mapping[str, Any]

#: The finalizer by which Kueue keeps a pod until it has failed and another one has replaced it.
_FINALIZER = "kueue.x-k8s.io/managed"


class Kueue:
    """A LocalQueue of Kueue, for the group of one attempt of a job.

    Kueue represents the group by a Workload, which has the quota until it is deleted. Group and
    Workload have the same name, for this launch only: otherwise Kueue would count its pods as part
    of the previous group, while it remembers that as finished.

    https://kueue.sigs.k8s.io/docs/tasks/run/plain_pods/
    """

    #: To check that the queue exists, to say why a group waits, to end its Workload, so that Kueue
    #: frees its quota and its pods, and to free a pod on a node that does not respond.
    permissions = (
        ("get", "kueue.x-k8s.io", "localqueues"),
        ("get", "kueue.x-k8s.io", "workloads"),
        ("delete", "kueue.x-k8s.io", "workloads"),
        ("patch", "", "pods"),
    )

    def __init__(self, name: str, job: str, attempt: str) -> None:
        self._name = name
        self._group = f"{job[:54]}-{hashlib.sha256(attempt.encode()).hexdigest()[:8]}"

    def metadata(self, role: str, count: int) -> dict[str, Any]:
        """Labels and annotations of a pod of this role, of ``count`` pods of the group."""
        return {
            "labels": {
                "kueue.x-k8s.io/queue-name": self._name,
                "kueue.x-k8s.io/pod-group-name": self._group,
            },
            # By default Kueue hashes resources and affinity, and so a restarted pod that has more
            # memory or avoids a node would replace none of its role.
            "annotations": {
                "kueue.x-k8s.io/pod-group-total-count": str(count),
                "kueue.x-k8s.io/role-hash": role,
            },
        }

    async def check(self, cluster: "Cluster") -> None:
        """Fail if the queue does not exist.

        Raises:
            FinalError: nothing would admit the pods.
        """
        if await cluster.get("LocalQueue", self._name) is None:
            raise FinalError(
                f"there is no LocalQueue {self._name} in namespace {cluster.namespace}; have Kueue "
                "installed and the queue created, or change [aerotrain] queue"
            )

    async def why_not_admitted(self, cluster: "Cluster") -> str:
        """What Kueue says about a group that it does not admit; empty if it says nothing."""
        there = await cluster.get("Workload", self._group) or {}
        said = {each["type"]: each for each in there.get("status", {}).get("conditions") or ()}
        for kind, status in (
            ("Evicted", "True"),
            ("QuotaReserved", "False"),
            ("Admitted", "False"),
        ):
            if said.get(kind, {}).get("status") == status:
                return str(said[kind].get("message", ""))
        return ""

    async def end(self, cluster: "Cluster") -> None:
        """Delete the Workload, if there is one, before the pods of the group are deleted.

        Otherwise Kueue would wait for replacements of the pods that fail or are deleted: it would
        keep their quota, and by its finalizer the pods.
        """
        there = await cluster.get("Workload", self._group)
        if there is not None:
            await cluster.delete("Workload", self._group, uid_of(there))

    async def release(self, cluster: "Cluster", pod: Manifest) -> None:
        """Let the deletion of a pod finish."""
        finalizers = pod["metadata"].get("finalizers") or []
        if _FINALIZER in finalizers:
            change = {"finalizers": [each for each in finalizers if each != _FINALIZER]}
            await cluster.patch("Pod", pod["metadata"]["name"], uid_of(pod), metadata=change)


def queue_named(setting: str, job: str, attempt: str) -> Kueue | None:
    """The queue that ``[aerotrain] queue`` names, as ``kueue:NAME``, for an attempt of a job.

    None if it is empty: then a pod is placed as soon as it exists.

    Raises:
        SpecError: it is neither.
    """
    system, _, name = setting.partition(":")
    if setting and (system != "kueue" or not name):
        raise SpecError(f"[aerotrain] queue is {setting!r}; write kueue:NAME, or nothing")
    return Kueue(name, job, attempt) if setting else None


def queue_of(owner: Manifest) -> Kueue | None:
    """The queue of the group with this owner, if any."""
    values = annotations(owner)
    return queue_named(values.get(QUEUE, ""), owner["metadata"]["name"], values[ATTEMPT])


async def end_without_owner(cluster: "Cluster", handle: Handle) -> None:
    """Give back what a group has of its queue, after its owner was deleted by hand."""
    if await cluster.may(verb="get", group="kueue.x-k8s.io", resource="workloads"):
        await Kueue("", handle.name, handle.attempt).end(cluster)  # else there may be no Kueue
