"""The reasons that Kubernetes gives for a pod's state, and what each means for its replica.

One table: where the reason appears, the state it means, a sentence for the user, and what to do
about it.
"""

from collections.abc import Mapping
from enum import StrEnum
from typing import NamedTuple

from aerotrain.contract.status import Failure, State
from aerotrain.launch.restart_policy import MORE_TIME


class Field(StrEnum):
    """The part of a pod's status in which a reason appears."""

    POD = "status.reason"
    DISRUPTION = "the condition DisruptionTarget"
    SCHEDULED = "the condition PodScheduled"
    WAITING = "containerStatuses.state.waiting"
    TERMINATED = "containerStatuses.state.terminated"


class Reason(NamedTuple):
    """What a reason means: the state of the replica, or the failure by which it is LOST.

    ``what`` is a sentence for the user, ``todo`` what to do about it.
    """

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
_FULL = Reason(Failure.START, "was rejected by its node, which was full", _AGAIN)
_SHUT_DOWN = Reason(Failure.NODE, "went down with its node", _AGAIN)
_LOST = Reason(Failure.NODE, "was lost with its node", _AGAIN)
_NOT_PULLED = Reason(State.PENDING, "waits because its image cannot be pulled")

#: By field, the reasons; that of all others has an empty name. The end of a container with another
#: reason is explained by its exit code.
# fmt: off
TABLE: Mapping[Field, Mapping[str, Reason]] = {
    # The kernel may kill a child of the replica, which then exits by itself: the reason is
    # OOMKilled with any exit code, including 0.
    Field.TERMINATED: {
        "OOMKilled": Reason(Failure.MEMORY, "ran out of memory", "ask for more memory"),
        "StartError": Reason(State.FAILED, "cannot be started", _IMAGE),
        "ContainerCannotRun": Reason(State.FAILED, "cannot be started", _IMAGE),
        "ContainerStatusUnknown": _LOST,
    },
    # The end of a pod that its containers do not show, written by its node or by a controller.
    Field.POD: {
        "DeadlineExceeded": Reason(Failure.TEMPORARY,
            "ran for longer than the deadline of its job", MORE_TIME),
        "Evicted": Reason(Failure.PREEMPTED,
            "was evicted by its node", "ask for as much memory and disk as it uses"),
        "Preempting": Reason(Failure.PREEMPTED, "was preempted by a critical pod", _AGAIN),
        "NodeLost": _LOST,
        "NodeShutdown": _SHUT_DOWN,
        "Shutdown": _SHUT_DOWN,
        "Terminated": _SHUT_DOWN,
        "NodeAffinity": Reason(Failure.NODE,
            "was rejected by its node, whose labels changed", _AGAIN),
        "UnexpectedAdmissionError": Reason(Failure.START,
            "was rejected by its node, as when a device has failed", _AGAIN),
        "TopologyAffinityError": Reason(Failure.START,
            "was rejected by its node", "ask for less on one node, or for a node that offers it"),
        "OutOfcpu": _FULL,
        "OutOfmemory": _FULL,
        "OutOfpods": _FULL,
        "": Reason(Failure.NODE, "was ended by its node", _AGAIN),
    },
    # https://kubernetes.io/docs/concepts/workloads/pods/disruptions/#pod-disruption-conditions
    Field.DISRUPTION: {
        "PreemptionByScheduler": Reason(Failure.PREEMPTED,
            "was preempted by a pod of higher priority", "give it a priority class, or try again"),
        "DeletionByTaintManager": Reason(Failure.PREEMPTED,
            "was evicted from its node by a taint", _AGAIN),
        "EvictionByEvictionAPI": Reason(Failure.PREEMPTED,
            "was evicted, as when a node is drained", _AGAIN),
        "DeletionByPodGC": _LOST,
        "TerminationByKubelet": Reason(Failure.PREEMPTED,
            "was ended by its node, for lack of resources or a shutdown", _AGAIN),
        "": Reason(Failure.PREEMPTED, "was ended by the cluster", _AGAIN),
    },
    # Not scheduled on a node.
    Field.SCHEDULED: {
        "Unschedulable": Reason(
            State.PENDING,
            "waits because no node can take it",
            "ask for less, or change what it asks of nodes and volumes",
        ),
        "SchedulingGated": Reason(State.PENDING, "waits until its queue admits it"),
        "": Reason(State.PENDING, "waits to be placed on a node"),
    },
    # Scheduled, and not running. Networks and registries recover; a wrong name does not.
    Field.WAITING: {
        "ContainerCreating": Reason(State.PENDING, "waits for its image and volumes"),
        "PodInitializing": Reason(State.PENDING, "waits for its init containers"),
        "ErrImagePull": _NOT_PULLED,
        "ImagePullBackOff": _NOT_PULLED,
        "RegistryUnavailable": Reason(State.PENDING, "waits for its image's registry"),
        "InvalidImageName": Reason(State.FAILED, "has an image with no valid name", "correct it"),
        "ErrImageNeverPull": Reason(
            State.FAILED,
            "may not pull its image, and its node does not have it",
            "load the image onto the nodes, or change imagePullPolicy",
        ),
        "SignatureValidationFailed": Reason(State.FAILED,
            "has an image whose signature is not valid", "have it signed"),
        "CreateContainerConfigError": Reason(
            State.FAILED,
            "cannot be created as described",
            "create the Secret or ConfigMap that it names, or use an image whose user is a number "
            "above 0",
        ),
        "CrashLoopBackOff": Reason(State.PENDING, "waits for a side-car that crashes"),
        "": Reason(State.PENDING, "waits"),
    },
}
# fmt: on

#: An image that does not exist or may not be pulled, in the words of docker, containerd and CRI-O.
_NO_SUCH_IMAGE = ("not found", "manifest unknown", "denied", "unauthorized", "forbidden")

_UNPULLABLE = Reason(
    State.FAILED,
    "has an image that cannot be pulled",
    "correct its name, or give the pod an imagePullSecret",
)


def row_of(field: Field, reason: str, message: str = "") -> Reason | None:
    """What ``reason`` means in ``field``; ``message`` distinguishes cases with the same reason."""
    rows, said = TABLE[field], message.lower()
    row = rows.get(reason, rows.get(""))
    if row is _NOT_PULLED and any(words in said for words in _NO_SUCH_IMAGE):
        # A DNS server that temporarily cannot resolve the registry also says "not found".
        return row if "lookup" in said else _UNPULLABLE
    if row is not None and row.state is State.FAILED and "failed to sync" in said:
        return rows.get("")  # the node has not read the Secret or ConfigMap yet
    return row
