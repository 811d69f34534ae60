"""The states of pods as a real cluster shows them, each as an edit of a pod's manifest.

Every function here returns such an edit, for ``KubernetesDouble.become`` and ``imagine``; the
kubelet of this double uses them too.
"""

from collections.abc import Callable, Mapping
from typing import Any
from uuid import uuid4

from support.kubernetes_double.admission import managed, timestamp
from support.kubernetes_double.kinds import PODS
from support.kubernetes_double.objects import Manifest

Edit = Callable[[Manifest], None]

NODE = "double-node"
NO_GPU = (
    "0/3 nodes are available: 3 Insufficient nvidia.com/gpu. no new claims to deallocate, "
    "preemption: 0/3 nodes are available: 3 Preemption is not helpful for scheduling."
)


def running() -> Edit:
    """Every container of the pod runs."""

    def edit(pod: Manifest) -> None:
        _schedule(pod)
        _condition(pod, "PodReadyToStartContainers", "True")
        status = pod["status"]
        status |= {"phase": "Running", "podIP": "10.42.0.17", "podIPs": [{"ip": "10.42.0.17"}]}
        for each in _statuses(pod):
            if "terminated" not in each["state"]:
                each |= {
                    "state": {"running": {"startedAt": timestamp()}},
                    "ready": True,
                    "started": True,
                    "imageID": f"sha256:{uuid4().hex}{uuid4().hex}",
                    "containerID": f"containerd://{uuid4().hex}{uuid4().hex}",
                    "resources": {},
                    "user": {"linux": {"uid": 1000, "gid": 1000, "supplementalGroups": [1000]}},
                }
        _ready(pod, "True")
        fields = pod["metadata"].setdefault("managedFields", [{}])
        fields[1:] = [managed("kubelet", PODS, {"status": status})]

    return edit


def scheduled() -> Edit:
    """A node is assigned, and its kubelet has not seen the pod yet."""

    def edit(pod: Manifest) -> None:
        pod["spec"]["nodeName"] = NODE
        _condition(pod, "PodScheduled", "True")

    return edit


def ready_to_start() -> Edit:
    """Volumes and network are ready, and no container is."""

    def edit(pod: Manifest) -> None:
        _schedule(pod)
        _condition(pod, "PodReadyToStartContainers", "True")

    return edit


def waiting(reason: str, message: str = "", container: str = "") -> Edit:
    """Containers wait: ContainerCreating, ErrImagePull, ImagePullBackOff, InvalidImageName …"""

    def edit(pod: Manifest) -> None:
        _schedule(pod)
        if reason != "ContainerCreating":
            _condition(pod, "PodReadyToStartContainers", "True")
        for each in _statuses(pod):
            if container in ("", each["name"]):
                state = {"reason": reason, **({"message": message} if message else {})}
                each["state"] = {"waiting": state}

    return edit


def image_pull_back_off(message: str = "") -> Edit:
    return waiting(
        "ImagePullBackOff",
        message
        or 'Back-off pulling image "registry.example/none:1": ErrImagePull: failed to pull and '
        'unpack image "registry.example/none:1": failed to resolve image: '
        "registry.example/none:1: not found",
    )


def unschedulable(message: str = NO_GPU) -> Edit:
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
            state: dict[str, Any] = {
                "exitCode": exit_code,
                "reason": reason or ("Error" if exit_code else "Completed"),
                "startedAt": started,
                "finishedAt": timestamp(),
                "containerID": each.get("containerID", ""),
            }
            each["state"] = {"terminated": {**state, **({"message": message} if message else {})}}
            each |= {"ready": False, "started": False}
        codes = _codes(pod)
        if None in codes:
            _ready(pod, "False", "ContainersNotReady")
        else:
            _ready(pod, "False", "PodFailed" if any(codes) else "PodCompleted")

    return edit


def ended() -> Edit:
    """The phase after the containers have terminated."""

    def edit(pod: Manifest) -> None:
        pod["status"]["phase"] = "Failed" if any(_codes(pod)) else "Succeeded"
        _condition(pod, "PodReadyToStartContainers", "False")

    return edit


def exited(exit_code: int, message: str = "", container: str = "") -> Edit:
    return both(terminated(exit_code, "", message, container), ended())


def out_of_memory(exit_code: int = 137) -> Edit:
    """The main process (137) or a child of it (another code) was killed: the reason is the same."""
    return both(terminated(exit_code, "OOMKilled"), ended())


def failed(reason: str, message: str) -> Edit:
    """The pod as a whole: Evicted, DeadlineExceeded, NodeLost, OutOfcpu, NodeShutdown …"""

    def edit(pod: Manifest) -> None:
        pod["status"] |= {"phase": "Failed", "reason": reason, "message": message}

    return edit


def evicted() -> Edit:
    message = (
        "The node was low on resource: memory. Threshold quantity: 100Mi, available: 92Mi. "
        "Container replica was using 1800Mi, request is 1Gi, has larger consumption of memory. "
    )
    lost = "The container could not be located when the pod was terminated"
    return both(
        disruption("TerminationByKubelet", message),
        terminated(137, "ContainerStatusUnknown", lost),
        failed("Evicted", message),
    )


def disruption(reason: str, message: str = "") -> Edit:
    """``DisruptionTarget``: PreemptionByScheduler, DeletionByTaintManager, …"""

    def edit(pod: Manifest) -> None:
        _condition(pod, "DisruptionTarget", "True", reason, message)

    return edit


def node_lost() -> Edit:
    """What the node controller writes for an unresponsive node; the pod stays in phase Running."""

    def edit(pod: Manifest) -> None:
        name = pod["metadata"]["name"]
        pod["status"] |= {
            "reason": "NodeLost",
            "message": f"Node {NODE} which was running pod {name} is unresponsive",
        }
        _ready(pod, "False")

    return edit


def node_not_ready() -> Edit:
    """What the node controller writes at first for an unresponsive node."""

    def edit(pod: Manifest) -> None:
        for each in pod["status"]["conditions"]:
            if each["type"] == "Ready":
                each["status"] = "False"

    return edit


def unknown() -> Edit:
    def edit(pod: Manifest) -> None:
        pod["status"]["phase"] = "Unknown"

    return edit


def both(*edits: Edit) -> Edit:
    """One edit after the other, seen as one change."""

    def edit(pod: Manifest) -> None:
        for each in edits:
            each(pod)

    return edit


def raw(status: Mapping[str, Any]) -> Edit:
    """Any status, which replaces the present one."""

    def edit(pod: Manifest) -> None:
        pod["status"] = dict(status)

    return edit


def _schedule(pod: Manifest) -> None:
    """What the kubelet shows first: the node, and containers that are being created."""
    status = pod["status"]
    pod["spec"]["nodeName"] = NODE
    pod["spec"].pop("schedulingGates", None)
    if "containerStatuses" in status:
        return
    status |= {"hostIP": "127.0.0.1", "hostIPs": [{"ip": "127.0.0.1"}], "startTime": timestamp()}
    status["conditions"] = []  # the kubelet lists them in an order of its own
    _condition(pod, "PodReadyToStartContainers", "False")
    _condition(pod, "Initialized", "True")
    _ready(pod, "False", "ContainersNotReady")
    _condition(pod, "PodScheduled", "True")
    status["containerStatuses"] = [
        {
            "name": container["name"],
            "image": container["image"],
            "imageID": "",
            "ready": False,
            "started": False,
            "restartCount": 0,
            "lastState": {},
            "state": {"waiting": {"reason": "ContainerCreating"}},
        }
        for container in pod["spec"]["containers"]
    ]


def _statuses(pod: Manifest) -> list[dict[str, Any]]:
    statuses: list[dict[str, Any]] = pod["status"].get("containerStatuses", [])
    return statuses


def _codes(pod: Manifest) -> list[int | None]:
    """The exit code of each container; None if it has not ended."""
    states = (each["state"].get("terminated", {}) for each in _statuses(pod))
    return [state.get("exitCode") for state in states]


def _ready(pod: Manifest, value: str, reason: str = "") -> None:
    names = [container["name"] for container in pod["spec"]["containers"]]
    unready = f"containers with unready status: [{' '.join(names)}]"
    message = unready if reason == "ContainersNotReady" else ""
    for kind in ("Ready", "ContainersReady"):
        _condition(pod, kind, value, reason, message)


def _condition(pod: Manifest, kind: str, value: str, reason: str = "", message: str = "") -> None:
    conditions = pod["status"].setdefault("conditions", [])
    new = {"type": kind, "status": value, "lastProbeTime": None}
    new |= {key: text for key, text in (("reason", reason), ("message", message)) if text}
    for index, old in enumerate(conditions):
        if old["type"] == kind:
            same = old["status"] == value
            conditions[index] = {
                **new,
                "lastTransitionTime": old["lastTransitionTime"] if same else timestamp(),
            }
            return
    conditions.append({**new, "lastTransitionTime": timestamp()})
