"""A group that Kueue admits: why it waits, and how its quota and its pods are freed.

Kueue represents the group by a Workload, which has the quota until it is deleted. Kueue keeps each
pod by a finalizer, until it has failed and another one has replaced it.
"""

from collections.abc import Mapping, Sequence
from typing import Any

from aerotrain.contract.errors import FinalError
from aerotrain_airflow.kubernetes.cluster import Cluster
from aerotrain_airflow.kubernetes.identity import (
    KUEUE,
    KUEUE_QUEUE,
    WORKLOAD,
    Handle,
    annotations,
    kueue_group,
    uid_of,
)

Manifest = Mapping[str, Any]


async def check_queue(cluster: Cluster, pods: Sequence[Manifest]) -> None:
    """Check that Kueue and the queue of these pods exist; otherwise nothing would admit them.

    Raises:
        FinalError: they do not.
    """
    for name in {pod["metadata"]["labels"].get(KUEUE_QUEUE) for pod in pods} - {None}:
        if not await cluster.serves("LocalQueue"):
            raise FinalError(
                "the cluster serves no API kueue.x-k8s.io with LocalQueues; have Kueue installed, "
                f"or unset [aerotrain] queue, which is kueue:{name}"
            )
        if await cluster.get("LocalQueue", name) is None:
            raise FinalError(
                f"there is no LocalQueue {name} in namespace {cluster.namespace}; create it, or "
                f"set [aerotrain] queue, which is kueue:{name}, to another one"
            )


async def why_not_admitted(cluster: Cluster, workload: str) -> str:
    """What Kueue says about a Workload that it does not admit; empty if it says nothing."""
    there = await cluster.get("Workload", workload) or {}
    conditions = there.get("status", {}).get("conditions") or ()
    said = {each["type"]: each for each in conditions}
    for kind, status in (("Evicted", "True"), ("QuotaReserved", "False"), ("Admitted", "False")):
        if said.get(kind, {}).get("status") == status:
            return str(said[kind].get("message", ""))
    return ""


async def delete_workload(cluster: Cluster, owner: Manifest) -> None:
    """Delete the Workload of the owner's group, if it has one.

    Otherwise Kueue would wait for replacements of the pods that fail or are deleted: it would keep
    their quota, and by its finalizer the pods.
    """
    if name := annotations(owner).get(WORKLOAD):
        await _delete(cluster, name)


async def delete_workload_without_owner(cluster: Cluster, handle: Handle) -> None:
    """Delete the Workload of a group, if it has one, after its owner was deleted by hand."""
    may = {"verb": "get", "group": "kueue.x-k8s.io", "resource": "workloads"}
    if await cluster.may(**may):  # else there may be no Kueue
        await _delete(cluster, kueue_group(handle.name, handle.attempt))


async def _delete(cluster: Cluster, workload: str) -> None:
    there = await cluster.get("Workload", workload)
    if there is not None:
        await cluster.delete("Workload", workload, uid_of(there))


async def release(cluster: Cluster, pod: Manifest) -> None:
    """Remove the finalizer of Kueue from a pod, if it has one."""
    finalizers = pod["metadata"].get("finalizers") or []
    if KUEUE in finalizers:
        others = [each for each in finalizers if each != KUEUE]
        change = {"finalizers": others}
        await cluster.patch("Pod", pod["metadata"]["name"], uid_of(pod), metadata=change)
