"""The reasons that Kubernetes gives for a pod's state, and what each means for its replica.

One table: where the reason appears, the state it means, a sentence for the user, and what to do
about it.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum

from aerotrain.contract.status import Failure, State
from aerotrain.launch.restart_policy import MORE_TIME


class Field(StrEnum):
    """The part of a pod's status in which a reason appears."""

    POD = "status.reason"
    DISRUPTION = "the condition DisruptionTarget"
    SCHEDULED = "the condition PodScheduled"
    WAITING = "containerStatuses.state.waiting"
    TERMINATED = "containerStatuses.state.terminated"


@dataclass(frozen=True)
class Reason:
    """One reason: what it means, a sentence for the user, and what to do about it.

    ``means`` is the state of the replica, or the failure by which it is LOST.
    """

    place: Field
    reason: str
    means: State | Failure
    what: str
    todo: str = ""

    @property
    def state(self) -> State:
        return self.means if isinstance(self.means, State) else State.LOST

    @property
    def failure(self) -> Failure | None:
        return self.means if isinstance(self.means, Failure) else None


_AGAIN = "another try may find a better node"
_IMAGE = "check its image and its command"

# A table, a row or two a reason.
# fmt: off
TABLE: tuple[Reason, ...] = (
    # The end of a container. The kernel may kill a child of the replica, which then exits by
    # itself: the reason is OOMKilled with any exit code, including 0.
    Reason(Field.TERMINATED, "OOMKilled", Failure.MEMORY, "ran out of memory",
        "ask for more memory"),
    Reason(Field.TERMINATED, "StartError", State.FAILED, "cannot be started", _IMAGE),
    Reason(Field.TERMINATED, "ContainerCannotRun", State.FAILED, "cannot be started", _IMAGE),
    Reason(Field.TERMINATED, "ContainerStatusUnknown", Failure.NODE, "was lost with its node",
        _AGAIN),

    # The end of a pod that its containers do not show, written by its node or by a controller.
    Reason(Field.POD, "DeadlineExceeded", Failure.TEMPORARY,
        "ran for longer than the deadline of its job", MORE_TIME),
    Reason(Field.POD, "Evicted", Failure.PREEMPTED, "was evicted by its node",
        "ask for as much memory and disk as it uses"),
    Reason(Field.POD, "Preempting", Failure.PREEMPTED, "was preempted by a critical pod", _AGAIN),
    Reason(Field.POD, "NodeLost", Failure.NODE, "was lost with its node", _AGAIN),
    Reason(Field.POD, "NodeShutdown", Failure.NODE, "went down with its node", _AGAIN),
    Reason(Field.POD, "Shutdown", Failure.NODE, "went down with its node", _AGAIN),
    Reason(Field.POD, "Terminated", Failure.NODE, "went down with its node", _AGAIN),
    Reason(Field.POD, "NodeAffinity", Failure.NODE, "was rejected by its node, "
        "whose labels changed",
        _AGAIN),
    Reason(Field.POD, "UnexpectedAdmissionError", Failure.START,
        "was rejected by its node, as when a device has failed", _AGAIN),
    Reason(Field.POD, "TopologyAffinityError", Failure.START, "was rejected by its node",
        "ask for less on one node, or for a node that offers it"),
    Reason(Field.POD, "OutOfcpu", Failure.START, "was rejected by its node, which was full",
        _AGAIN),
    Reason(Field.POD, "OutOfmemory", Failure.START, "was rejected by its node, which was full",
        _AGAIN),
    Reason(Field.POD, "OutOfpods", Failure.START, "was rejected by its node, which was full",
        _AGAIN),

    # https://kubernetes.io/docs/concepts/workloads/pods/disruptions/#pod-disruption-conditions
    Reason(Field.DISRUPTION, "PreemptionByScheduler", Failure.PREEMPTED,
        "was preempted by a pod of higher priority", "give it a priority class, or try again"),
    Reason(Field.DISRUPTION, "DeletionByTaintManager", Failure.PREEMPTED,
        "was evicted from its node by a taint", _AGAIN),
    Reason(Field.DISRUPTION, "EvictionByEvictionAPI", Failure.PREEMPTED,
        "was evicted, as when a node is drained", _AGAIN),
    Reason(Field.DISRUPTION, "DeletionByPodGC", Failure.NODE, "was lost with its node", _AGAIN),
    Reason(Field.DISRUPTION, "TerminationByKubelet", Failure.PREEMPTED,
        "was ended by its node, for lack of resources or a shutdown", _AGAIN),

    # Not scheduled on a node.
    Reason(Field.SCHEDULED, "Unschedulable", State.PENDING, "waits because no node can take it",
        "ask for less, or change what it asks of nodes and volumes"),
    Reason(Field.SCHEDULED, "SchedulingGated", State.PENDING, "waits until its queue admits it"),
    Reason(Field.SCHEDULED, "SchedulerError", State.PENDING,
        "waits because the scheduler reports an error"),

    # Scheduled, and not running. Networks and registries recover; a wrong name does not.
    Reason(Field.WAITING, "ContainerCreating", State.PENDING, "waits for its image and volumes"),
    Reason(Field.WAITING, "PodInitializing", State.PENDING, "waits for its init containers"),
    Reason(Field.WAITING, "ErrImagePull", State.PENDING,
        "waits because its image cannot be pulled"),
    Reason(Field.WAITING, "ImagePullBackOff", State.PENDING,
        "waits because its image cannot be pulled"),
    Reason(Field.WAITING, "RegistryUnavailable", State.PENDING, "waits for its image's registry"),
    Reason(Field.WAITING, "InvalidImageName", State.FAILED, "has an image with no valid name",
        "correct it"),
    Reason(Field.WAITING, "ErrImageNeverPull", State.FAILED,
        "may not pull its image, and its node does not have it",
        "load the image onto the nodes, or change imagePullPolicy"),
    Reason(Field.WAITING, "SignatureValidationFailed", State.FAILED,
        "has an image whose signature is not valid", "have it signed"),
    Reason(Field.WAITING, "CreateContainerConfigError", State.FAILED,
        "cannot be created as described",
        "create the Secret or ConfigMap that it names, or use an image whose user is a number "
        "above 0"),
    Reason(Field.WAITING, "CreateContainerError", State.PENDING,
        "waits because its container cannot be created"),
    Reason(Field.WAITING, "RunContainerError", State.PENDING,
        "waits because its container cannot be started"),
    Reason(Field.WAITING, "CrashLoopBackOff", State.PENDING, "waits for a side-car that crashes"),
)
# fmt: on

_ROWS: Mapping[tuple[Field, str], Reason] = {(row.place, row.reason): row for row in TABLE}

#: Reasons that are not in the table. The end of a container is then explained by its exit code.
_OTHERS: Mapping[Field, Reason] = {
    Field.DISRUPTION: Reason(
        Field.DISRUPTION, "", Failure.PREEMPTED, "was ended by the cluster", _AGAIN
    ),
    Field.SCHEDULED: Reason(Field.SCHEDULED, "", State.PENDING, "waits to be placed on a node"),
    Field.WAITING: Reason(Field.WAITING, "", State.PENDING, "waits"),
    Field.POD: Reason(Field.POD, "", Failure.NODE, "was ended by its node", _AGAIN),
}

#: An image that does not exist or may not be pulled, in the words of docker, containerd and CRI-O.
_NO_SUCH_IMAGE = ("not found", "manifest unknown", "denied", "unauthorized", "forbidden")

_UNPULLABLE = Reason(
    Field.WAITING,
    "",
    State.FAILED,
    "has an image that cannot be pulled",
    "correct its name, or give the pod an imagePullSecret",
)


def row_of(place: Field, reason: str, message: str = "") -> Reason | None:
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
