"""The states of pods as a real cluster shows them, each as an edit of a pod's manifest.

Every function here returns such an edit, for ``KubernetesDouble.become`` and ``imagine``; the
kubelet of this double uses them too. All other states, as the API shows them, are rows of
``tests/pod_states.yaml``.
"""

from collections.abc import Callable
from typing import Any

from support.kubernetes_double.objects import Manifest, timestamp

Edit = Callable[[Manifest], None]

NODE = "double-node"


def running() -> Edit:
    """Every container of the pod runs."""

    def edit(pod: Manifest) -> None:
        _schedule(pod)
        pod["status"]["phase"] = "Running"
        for each in _statuses(pod):
            if "terminated" not in each["state"]:
                each |= {"state": {"running": {"startedAt": timestamp()}}, "ready": True}
        _ready(pod, "True")

    return edit


def scheduled() -> Edit:
    """A node is assigned, and its kubelet has not seen the pod yet."""

    def edit(pod: Manifest) -> None:
        pod["spec"]["nodeName"] = NODE
        _condition(pod, "PodScheduled", "True")

    return edit


def waiting(reason: str, message: str = "") -> Edit:
    """Containers wait: ContainerCreating, ErrImagePull, ImagePullBackOff, InvalidImageName …"""

    def edit(pod: Manifest) -> None:
        _schedule(pod)
        for each in _statuses(pod):
            each["state"] = {"waiting": {"reason": reason, "message": message}}

    return edit


def unschedulable(message: str = "0/3 nodes are available: 3 Insufficient nvidia.com/gpu.") -> Edit:
    def edit(pod: Manifest) -> None:
        _condition(pod, "PodScheduled", "False", "Unschedulable", message)

    return edit


def gated() -> Edit:
    """Kept from the scheduler by a scheduling gate, as Kueue does."""

    def edit(pod: Manifest) -> None:
        pod["spec"]["schedulingGates"] = [{"name": "kueue.x-k8s.io/admission"}]
        message = "Scheduling is blocked due to non-empty scheduling gates"
        _condition(pod, "PodScheduled", "False", "SchedulingGated", message)

    return edit


def terminated(exit_code: int, reason: str = "", message: str = "", container: str = "") -> Edit:
    """Containers have ended, and the phase does not show it yet."""

    def edit(pod: Manifest) -> None:
        _schedule(pod)
        for each in _statuses(pod):
            if container not in ("", each["name"]) or "terminated" in each["state"]:
                continue
            started = each["state"].get("running", {}).get("startedAt", "1970-01-01T00:00:00Z")
            each["state"] = {
                "terminated": {
                    "exitCode": exit_code,
                    "reason": reason or ("Error" if exit_code else "Completed"),
                    "startedAt": started,
                    "finishedAt": timestamp(),
                    "message": message,
                }
            }
        _ready(pod, "False")

    return edit


def ended() -> Edit:
    """The phase once every container has terminated; before that, no change."""

    def edit(pod: Manifest) -> None:
        states = [each["state"].get("terminated") for each in _statuses(pod)]
        codes = [state["exitCode"] for state in states if state]
        if codes and len(codes) == len(states):
            pod["status"]["phase"] = "Failed" if any(codes) else "Succeeded"

    return edit


def exited(exit_code: int, message: str = "") -> Edit:
    return both(terminated(exit_code, "", message), ended())


def out_of_memory(exit_code: int = 137) -> Edit:
    """The main process (137) or a child of it (another code) was killed: the reason is the same."""
    return both(terminated(exit_code, "OOMKilled"), ended())


def node_not_ready() -> Edit:
    """What the node controller writes at first for an unresponsive node."""

    def edit(pod: Manifest) -> None:
        _condition(pod, "Ready", "False")

    return edit


def evicted() -> Edit:
    """What Kueue writes before it deletes the pods of a group that it has evicted."""

    def edit(pod: Manifest) -> None:
        message = "Preempted to accommodate a workload"
        _condition(pod, "TerminationTarget", "True", "WorkloadEvicted", message)

    return edit


def both(*edits: Edit) -> Edit:
    """One edit after the other, seen as one change."""

    def edit(pod: Manifest) -> None:
        for each in edits:
            each(pod)

    return edit


def _schedule(pod: Manifest) -> None:
    """What the kubelet shows first: the node, and containers that are being created."""
    pod["spec"]["nodeName"] = NODE
    pod["spec"].pop("schedulingGates", None)
    if "containerStatuses" in pod["status"]:
        return
    _condition(pod, "PodScheduled", "True")
    _ready(pod, "False")
    pod["status"]["containerStatuses"] = [
        {
            "name": container["name"],
            "image": container["image"],
            "imageID": "",  # without it, the official clients read no pod
            "ready": False,
            "restartCount": 0,
            "state": {"waiting": {"reason": "ContainerCreating"}},
        }
        for container in pod["spec"]["containers"]
    ]


def _statuses(pod: Manifest) -> list[dict[str, Any]]:
    statuses: list[dict[str, Any]] = pod["status"].get("containerStatuses", [])
    return statuses


def _ready(pod: Manifest, value: str) -> None:
    for kind in ("Ready", "ContainersReady"):
        _condition(pod, kind, value)


def _condition(pod: Manifest, kind: str, value: str, reason: str = "", message: str = "") -> None:
    conditions = pod["status"].setdefault("conditions", [])
    conditions[:] = [each for each in conditions if each["type"] != kind]
    conditions.append({"type": kind, "status": value, "reason": reason, "message": message})
