"""The reasons that Kubernetes gives for a pod's state, and what each means for its replica.

One table: where the reason appears, the state it means, a sentence for the user, and what to do
about it.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum

from aerotrain.contract.status import Loss, State


class Place(StrEnum):
    """The part of a pod's status in which a reason appears."""

    POD = "status.reason"
    DISRUPTION = "the condition DisruptionTarget"
    SCHEDULED = "the condition PodScheduled"
    WAITING = "containerStatuses.state.waiting"
    TERMINATED = "containerStatuses.state.terminated"


@dataclass(frozen=True)
class Row:
    """One reason: the state it means, what happened, and what to do about it."""

    place: Place
    reason: str
    state: State
    what: str
    todo: str = ""
    loss: Loss | None = None


_AGAIN = "another try may find a better node"
_IMAGE = "see to its image and its command"

# A table, a row or two a reason.
# fmt: off
TABLE: tuple[Row, ...] = (
    # The end of a container. The kernel may kill a child of the replica, which then exits by
    # itself: the reason is OOMKilled with any exit code, including 0.
    Row(Place.TERMINATED, "OOMKilled", State.LOST, "ran out of memory", "ask for more memory",
        loss=Loss.MEMORY),
    Row(Place.TERMINATED, "StartError", State.FAILED, "cannot be started", _IMAGE),
    Row(Place.TERMINATED, "ContainerCannotRun", State.FAILED, "cannot be started", _IMAGE),
    Row(Place.TERMINATED, "ContainerStatusUnknown", State.LOST, "was lost with its node", _AGAIN,
        loss=Loss.NODE),

    # The end of a pod that its containers do not show, written by its node or by a controller.
    Row(Place.POD, "DeadlineExceeded", State.LOST, "outlived the deadline of its job",
        "allow it more, or give it more replicas", loss=Loss.TEMPORARY),
    Row(Place.POD, "Evicted", State.LOST, "was evicted by its node",
        "ask for as much memory and disk as it uses", loss=Loss.PREEMPTED),
    Row(Place.POD, "Preempting", State.LOST, "made room for a critical pod", _AGAIN,
        loss=Loss.PREEMPTED),
    Row(Place.POD, "NodeLost", State.LOST, "was lost with its node", _AGAIN, loss=Loss.NODE),
    Row(Place.POD, "NodeShutdown", State.LOST, "went down with its node", _AGAIN, loss=Loss.NODE),
    Row(Place.POD, "Shutdown", State.LOST, "went down with its node", _AGAIN, loss=Loss.NODE),
    Row(Place.POD, "Terminated", State.LOST, "went down with its node", _AGAIN, loss=Loss.NODE),
    Row(Place.POD, "NodeAffinity", State.LOST, "was refused by its node, whose labels changed",
        _AGAIN, loss=Loss.NODE),
    Row(Place.POD, "UnexpectedAdmissionError", State.LOST,
        "was refused by its node, as when a device has failed", _AGAIN, loss=Loss.START),
    Row(Place.POD, "TopologyAffinityError", State.LOST, "was refused by its node",
        "ask for less on one node, or for a node that offers it", loss=Loss.START),
    Row(Place.POD, "OutOfcpu", State.LOST, "was refused by its node, which was full", _AGAIN,
        loss=Loss.START),
    Row(Place.POD, "OutOfmemory", State.LOST, "was refused by its node, which was full", _AGAIN,
        loss=Loss.START),
    Row(Place.POD, "OutOfpods", State.LOST, "was refused by its node, which was full", _AGAIN,
        loss=Loss.START),

    # https://kubernetes.io/docs/concepts/workloads/pods/disruptions/#pod-disruption-conditions
    Row(Place.DISRUPTION, "PreemptionByScheduler", State.LOST,
        "was preempted by a pod of higher priority", "give it a priority class, or try again",
        loss=Loss.PREEMPTED),
    Row(Place.DISRUPTION, "DeletionByTaintManager", State.LOST,
        "was driven from its node by a taint", _AGAIN, loss=Loss.PREEMPTED),
    Row(Place.DISRUPTION, "EvictionByEvictionAPI", State.LOST,
        "was evicted, as when a node is drained", _AGAIN, loss=Loss.PREEMPTED),
    Row(Place.DISRUPTION, "DeletionByPodGC", State.LOST, "was lost with its node", _AGAIN,
        loss=Loss.NODE),
    Row(Place.DISRUPTION, "TerminationByKubelet", State.LOST,
        "was ended by its node, for want of resources or a shutdown", _AGAIN, loss=Loss.PREEMPTED),

    # Not scheduled on a node.
    Row(Place.SCHEDULED, "Unschedulable", State.PENDING, "waits, for no node can take it",
        "ask for less, or change what it asks of nodes and volumes"),
    Row(Place.SCHEDULED, "SchedulingGated", State.PENDING, "waits until its queue admits it"),
    Row(Place.SCHEDULED, "SchedulerError", State.PENDING, "waits, for the scheduler has trouble"),

    # Scheduled, and not running. Networks and registries recover; a wrong name does not.
    Row(Place.WAITING, "ContainerCreating", State.PENDING, "waits for its image and volumes"),
    Row(Place.WAITING, "PodInitializing", State.PENDING, "waits for its init containers"),
    Row(Place.WAITING, "ErrImagePull", State.PENDING, "waits, for its image cannot be pulled"),
    Row(Place.WAITING, "ImagePullBackOff", State.PENDING, "waits, for its image cannot be pulled"),
    Row(Place.WAITING, "RegistryUnavailable", State.PENDING, "waits for its image's registry"),
    Row(Place.WAITING, "InvalidImageName", State.FAILED, "has an image with no valid name",
        "correct it"),
    Row(Place.WAITING, "ErrImageNeverPull", State.FAILED,
        "may not pull its image, and its node does not have it",
        "load the image onto the nodes, or change imagePullPolicy"),
    Row(Place.WAITING, "SignatureValidationFailed", State.FAILED,
        "has an image whose signature is refused", "have it signed"),
    Row(Place.WAITING, "CreateContainerConfigError", State.FAILED, "cannot be made as described",
        "make the Secret or ConfigMap that it names, or an image whose user is a number above 0"),
    Row(Place.WAITING, "CreateContainerError", State.PENDING, "waits, for it cannot be made"),
    Row(Place.WAITING, "RunContainerError", State.PENDING, "waits, for it cannot be started"),
    Row(Place.WAITING, "CrashLoopBackOff", State.PENDING, "waits for a side-car that crashes"),
)
# fmt: on

_ROWS: Mapping[tuple[Place, str], Row] = {(row.place, row.reason): row for row in TABLE}

#: Reasons that are not in the table: an end counts as a crash, as an unknown exit code does, and a
#: wait as a wait.
_OTHERS: Mapping[Place, Row] = {
    Place.DISRUPTION: Row(
        Place.DISRUPTION, "", State.LOST, "was ended by the cluster", _AGAIN, Loss.PREEMPTED
    ),
    Place.SCHEDULED: Row(Place.SCHEDULED, "", State.PENDING, "waits to be placed on a node"),
    Place.WAITING: Row(Place.WAITING, "", State.PENDING, "waits"),
    Place.POD: Row(Place.POD, "", State.LOST, "was ended by its node", _AGAIN, Loss.NODE),
}

#: An image that does not exist or may not be pulled, in the words of docker, containerd and CRI-O.
_NO_SUCH_IMAGE = ("not found", "manifest unknown", "denied", "unauthorized", "forbidden")

_UNPULLABLE = Row(
    Place.WAITING,
    "",
    State.FAILED,
    "has an image that cannot be pulled",
    "correct its name, or give the pod an imagePullSecret",
)


def row_of(place: Place, reason: str, message: str = "") -> Row | None:
    """What ``reason`` means at ``place``; ``message`` distinguishes cases with the same reason."""
    row = _ROWS.get((place, reason)) or _OTHERS.get(place)
    said = message.lower()
    if reason in ("ErrImagePull", "ImagePullBackOff") and any(
        words in said for words in _NO_SUCH_IMAGE
    ):
        # A DNS server that temporarily cannot resolve the registry also says "not found".
        return row if "lookup" in said else _UNPULLABLE
    if row is not None and row.state is State.FAILED and "failed to sync" in said:
        return _OTHERS[place]  # the node has not read the Secret or ConfigMap yet
    return row
