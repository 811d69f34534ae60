"""Interprets the status of a pod as the state of its replica.

The tables have the reasons that Kubernetes gives for a pod's state, by the part of the status in
which they appear, and what each means. An end or a wait with another reason is still an end or a
wait, but an unknown phase is an error. The end of a container is visible a second before the phase
of its pod changes, and has more details.
"""

from collections.abc import Mapping
from datetime import datetime
from typing import Any, NamedTuple

from aerotrain.contract.errors import ExitCode, FinalError, TerminationMessage
from aerotrain.contract.status import Failure, Observation, State, observed_exit
from aerotrain.launch.restart_policy import FROM_OUTSIDE, MORE_TIME
from aerotrain_airflow.kubernetes.identity import CONTAINER

Part = Mapping[str, Any]


class Reason(NamedTuple):
    """What a reason means: the state of the replica, or the failure by which it is LOST.

    ``what`` is a sentence for the user, ``todo`` what to do about it.
    """

    means: State | Failure
    what: str
    todo: str = ""

    def observed(self, reason: str, message: str, code: int | None = None) -> Observation:
        """The observation of a replica with this reason, and Kubernetes' message about it."""
        said = ": ".join(filter(None, (reason, message)))
        what = f"{self.what} ({said})" if said else self.what
        is_state = isinstance(self.means, State)
        return Observation(
            state=self.means if isinstance(self.means, State) else State.LOST,
            exit_code=code,
            reason=f"{what}; {self.todo}" if self.todo else what,
            failure=None if is_state else Failure(self.means),
        )


_AGAIN = "another try may find a better node"
_FULL = Reason(Failure.START, "was rejected by its node", "ask for less on one node, or try again")
_NO_START = Reason(State.FAILED, "cannot be started", "check its image and its command")
_NOT_PULLED = Reason(State.PENDING, "waits because its image cannot be pulled")
_NO_IMAGE = Reason(
    State.FAILED,
    "has an image that cannot be pulled",
    "correct its name, give the pod an imagePullSecret, or load the image onto the nodes",
)
_LOST = Reason(Failure.NODE, "was lost with its node", _AGAIN)

Table = Mapping[str, Reason]

#: The end of a container; other ends are explained by the exit code. The kernel may kill a child
#: of the replica, which then exits by itself: the reason is OOMKilled with any exit code, also 0.
TERMINATED: Table = {
    "OOMKilled": Reason(Failure.MEMORY, "ran out of memory", "ask for more memory"),
    "StartError": _NO_START,
    "ContainerCannotRun": _NO_START,
    "ContainerStatusUnknown": _LOST,
}

#: ``status.reason``, written by the node or a controller. Others are those of a node that went
#: down, or whose labels changed.
POD: Table = {
    "DeadlineExceeded": Reason(
        Failure.TEMPORARY, "ran for longer than the deadline of its job", MORE_TIME
    ),
    "Evicted": Reason(
        Failure.PREEMPTED, "was evicted by its node", "ask for as much memory and disk as it uses"
    ),
    "Preempting": Reason(Failure.PREEMPTED, "was preempted by a critical pod", _AGAIN),
    "UnexpectedAdmissionError": _FULL,  # as when a device has failed
    "TopologyAffinityError": _FULL,
    "OutOfcpu": _FULL,
    "OutOfmemory": _FULL,
    "OutOfpods": _FULL,
    "": Reason(Failure.NODE, "was ended by its node", _AGAIN),
}

#: The condition DisruptionTarget; others are an eviction, as when a node is drained, or a taint:
#: https://kubernetes.io/docs/concepts/workloads/pods/disruptions/#pod-disruption-conditions
DISRUPTION: Table = {
    "DeletionByPodGC": _LOST,
    "PreemptionByScheduler": Reason(
        Failure.PREEMPTED,
        "was preempted by a pod of higher priority",
        "give it a priority class, or try again",
    ),
    "": Reason(Failure.PREEMPTED, "was evicted by the cluster", _AGAIN),
}

#: The condition TerminationTarget, by which Kueue ends the pods of a group that it has evicted.
STOPPED: Table = {"": Reason(Failure.QUEUE, "was ended by its queue")}

#: The condition PodScheduled.
SCHEDULED: Table = {
    "Unschedulable": Reason(
        State.PENDING,
        "waits because no node can take it",
        "ask for less, or change what it asks of nodes and volumes",
    ),
    "SchedulingGated": Reason(State.PENDING, "waits until its queue admits it"),
    "": Reason(State.PENDING, "waits to be placed on a node"),
}

#: A container that waits on its node. Networks and registries recover; a wrong name does not.
WAITING: Table = {
    "ErrImagePull": _NOT_PULLED,
    "ImagePullBackOff": _NOT_PULLED,
    "InvalidImageName": _NO_IMAGE,
    "ErrImageNeverPull": _NO_IMAGE,
    "SignatureValidationFailed": _NO_IMAGE,
    "CreateContainerConfigError": Reason(
        State.FAILED,
        "cannot be created as described",
        "create the Secret or ConfigMap that it names, or use an image whose user is a number "
        "above 0",
    ),
    "": Reason(State.PENDING, "waits"),
}

#: An image that does not exist or may not be pulled, in the words of docker, containerd and CRI-O.
_NO_SUCH_IMAGE = ("not found", "manifest unknown", "denied", "unauthorized", "forbidden")

_PENDING = SCHEDULED[""].observed("", "")

#: Messages of Python or the kernel for an image that can run no replica, at any exit code.
_WRONG_IMAGE = {
    "No module named aerotrain": "aerotrain is not installed in its image; see images/training",
    "No module named 'aerotrain'": "aerotrain is not installed in its image; see images/training",
    "exec format error": "its image is built for another processor architecture",
}

#: The exit codes that a replica itself chooses.
_OWN_CODES = (
    ExitCode.OK,
    ExitCode.FINAL,
    ExitCode.TEMPORARY,
    ExitCode.FROZEN,
    ExitCode.SUPERSEDED,
)


def observe_pod(pod: Part | None) -> Observation:
    """The state of the replica in this pod, given as the API's JSON; None for a deleted pod.

    Raises:
        FinalError: the phase of the pod is unknown to this version.
    """
    if pod is None:
        return _lost("is gone: its pod was deleted from outside, or its node left", Failure.NODE)
    status = pod.get("status") or {}
    own, others = _containers(status)
    phase = status.get("phase", "Pending")
    deleted = "deletionTimestamp" in pod["metadata"]
    if "terminated" in own:
        return _own_end(own["terminated"], status, deleted=deleted)
    if phase == "Succeeded":
        return observed_exit(ExitCode.OK)
    if phase == "Failed":
        said = _message(status) or "Kubernetes does not say why"
        return _taken_down(status) or _failed_side_car(others) or _lost(f"failed: {said}")
    if phase == "Unknown":
        return _lost("was lost: its node no longer answers", Failure.NODE)
    if phase not in ("Pending", "Running"):
        raise FinalError(
            f"the pod {pod['metadata']['name']} is in phase {phase!r}; this aerotrain knows "
            "Pending, Running, Succeeded, Failed and Unknown: use a later one"
        )
    if deleted or status.get("reason") == "NodeLost":
        return _taken_down(status) or _lost("is being deleted from outside", Failure.PREEMPTED)
    running = Observation(state=State.RUNNING, reason=_silence_of_node(status))
    now = running if "running" in own else _waiting(status, own, others)
    return _failed_side_car(others) or now


def _lost(reason: str, failure: Failure | None = None, code: int | None = None) -> Observation:
    return Observation(state=State.LOST, exit_code=code, reason=reason, failure=failure)


def has_ended(pod: Part) -> bool:
    """Whether none of the pod's containers runs or will."""
    return (pod.get("status") or {}).get("phase") in ("Succeeded", "Failed")


def is_gated(pod: Part) -> bool:
    """Whether the scheduler may not place the pod yet, as before its queue admits it."""
    return bool(pod["spec"].get("schedulingGates"))


def created_at(pod: Part) -> float:
    """When the pod was created, as a time of ``time.time()``."""
    return _time(pod["metadata"]["creationTimestamp"])


def started_at(pod: Part) -> float | None:
    """When the replica in the pod started; None if it never did."""
    own, _ = _containers(pod.get("status") or {})
    stamps = [state.get("startedAt") for kind, state in own.items() if kind != "waiting"]
    # For a container that could not be started, the time is that of the epoch or earlier.
    return next((at for stamp in stamps if stamp and (at := _time(stamp)) > 0), None)


def _time(stamp: str) -> float:
    return datetime.fromisoformat(stamp).timestamp()


def _containers(status: Part) -> tuple[Part, dict[str, Part]]:
    """The state of the replica's container, which may be empty, and those of all others."""
    statuses = [
        *(status.get("initContainerStatuses") or ()),
        *(status.get("containerStatuses") or ()),
    ]
    states: dict[str, Part] = {each["name"]: each.get("state") or {} for each in statuses}
    return states.pop(CONTAINER, {}), states


def _own_end(ended: Part, status: Part, *, deleted: bool) -> Observation:
    """How the replica ended: by itself, or because of the cluster."""
    code, known = ended["exitCode"], _known_end(ended)
    if known is not None and ended.get("reason") != "ContainerStatusUnknown":
        return known
    if code not in _OWN_CODES:
        taken = _taken_down(status, code)  # the cause of the preemption, not its exit code
        if taken is None and deleted and code in FROM_OUTSIDE:
            taken = _lost("was deleted from outside", Failure.PREEMPTED, code)
        if taken is not None:
            return taken
    return known or _exit(code, _message(ended))


def _known_end(ended: Part) -> Observation | None:
    """An end that the container's reason explains."""
    reason = ended.get("reason", "")
    row = TERMINATED.get(reason)
    if row is None:
        return None
    # The message of a container that was started is its own, not the reason of its end.
    return row.observed(reason, _message(ended) if row is _NO_START else "", ended["exitCode"])


def _exit(code: int, message: str) -> Observation:
    """An end that the exit code explains, with the termination message."""
    for words, reason in _WRONG_IMAGE.items():
        if code not in _OWN_CODES and words in message:
            return Observation(state=State.FAILED, exit_code=code, reason=f"cannot run: {reason}")
    # A replica's own message and that of its probe are complete; others are the end of the log,
    # which says nothing of a signal from outside.
    is_whole = code in _OWN_CODES or TerminationMessage.parse(message).no_heartbeat
    if message and not is_whole:
        message = "" if code in FROM_OUTSIDE else message.splitlines()[-1]
    return observed_exit(code, "" if code == ExitCode.OK else message)


def _taken_down(status: Part, code: int | None = None) -> Observation | None:
    """Why the cluster ended the pod, if it did."""
    if reason := status.get("reason"):
        return POD.get(reason, POD[""]).observed(reason, _message(status), code)
    for kind, table in (("TerminationTarget", STOPPED), ("DisruptionTarget", DISRUPTION)):
        if (found := _condition(status, kind)).get("status") == "True":
            reason = found.get("reason", "")
            return table.get(reason, table[""]).observed(reason, _message(found), code)
    return None


def _failed_side_car(others: Mapping[str, Part]) -> Observation | None:
    """The failure of a side-car or init container, which also ends the replica."""
    for name, state in others.items():
        ended = state.get("terminated")
        if ended is not None:
            seen = _known_end(ended) or _exit(ended["exitCode"], _message(ended))
            if seen.state is not State.SUCCEEDED:
                reason = f"ended with its container {name!r}, which {seen.reason}"
                return Observation(state=seen.state, reason=reason, failure=seen.failure)
    return None


def _silence_of_node(status: Part) -> str:
    """A sentence if the node no longer reports on the pod, else nothing.

    Then Kubernetes sets the pod to not ready, while the node's last report is that its containers
    are ready.
    """
    ready, containers = _condition(status, "Ready"), _condition(status, "ContainersReady")
    is_gated = ready.get("reason") == "ReadinessGatesNotReady"
    if ready.get("status") != "False" or containers.get("status") != "True" or is_gated:
        return ""
    return "is on a node that is not ready: unless the node responds again, the pod is evicted"


def _waiting(status: Part, own: Part, others: Mapping[str, Part]) -> Observation:
    """What a pod that has not started is waiting for; the wait may be futile."""
    seen = [_wait(state["waiting"]) for state in (*others.values(), own) if "waiting" in state]
    scheduled = _condition(status, "PodScheduled")
    if scheduled.get("status") == "False":
        reason = scheduled.get("reason", "")
        row = SCHEDULED.get(reason, SCHEDULED[""])
        seen.append(row.observed(reason, _message(scheduled)))
    # A futile wait, or else the one with the longest reason: the usual ones are short.
    final = [each for each in seen if each.state is State.FAILED]
    return max(final or seen, key=lambda each: len(each.reason), default=_PENDING)


def _wait(waiting: Part) -> Observation:
    reason, message = waiting.get("reason", ""), _message(waiting)
    if reason == "ImagePullBackOff" and ": ErrImagePull: " in message:
        # The two reasons alternate every few seconds; the message to the user should not.
        reason, message = "ErrImagePull", message.partition(": ErrImagePull: ")[2]
    row, said = WAITING.get(reason, WAITING[""]), message.lower()
    if row is _NOT_PULLED and any(words in said for words in _NO_SUCH_IMAGE):
        # A DNS server that temporarily cannot resolve the registry also says "not found".
        row = row if "lookup" in said else _NO_IMAGE
    elif row.means is State.FAILED and "failed to sync" in said:
        row = WAITING[""]  # the node has not read the Secret or ConfigMap yet
    return row.observed(reason, message)


def _condition(status: Part, kind: str) -> Part:
    conditions = status.get("conditions") or ()
    return next((each for each in conditions if each["type"] == kind), {})


def _message(part: Part) -> str:
    return (part.get("message") or "").strip()
