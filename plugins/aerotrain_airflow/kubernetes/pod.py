"""The pod of a replica: defaults, the templates on top of them, and then the reserved fields."""

import math
import shlex
from dataclasses import dataclass, field
from typing import Any

from aerotrain.contract.environment import Variable, role_environment
from aerotrain.contract.errors import TERMINATION_LOG, SpecError, TerminationMessage
from aerotrain.contract.job import Job
from aerotrain.contract.replicas import ReplicaName, ReplicaSpec, Resources
from aerotrain.contract.steps import GRPC_PORT, REST_PORT, SERVED, SIDECAR_MODEL
from aerotrain.launch.restart_policy import heartbeat_timeout
from aerotrain_airflow.kubernetes.identity import (
    CONTAINER,
    INDEX_LABEL,
    RESTARTS,
    ROLE_LABEL,
    pod_name,
)
from aerotrain_airflow.kubernetes.kueue import Kueue
from aerotrain_airflow.kubernetes.spot import placement
from aerotrain_airflow.kubernetes.template import Template, checked, merge

Manifest = dict[str, Any]

#: The port of a replica's TensorFlow server (gRPC).
PORT = 2222

SCRATCH = "/scratch"

#: The user and group of a container that needs one, no user or group of the system: the group is
#: that of replicas in images/training.
_NOT_ROOT = 65532
_SHARED_MEMORY = "shared-memory"

#: NCCL exchanges between the GPUs of a pod in /dev/shm, which has 64 MiB in most container engines.
#: https://docs.nvidia.com/deeplearning/nccl/user-guide/docs/troubleshooting.html#sharing-data
_SHARED_BY_GPUS = "1Gi"
_NODE_LABEL = "kubernetes.io/hostname"

#: Seconds from SIGTERM to SIGKILL; for a replica that may save for ``aerotrain.replica.GRACE``
#: seconds, these are enough, and a template may give more. Kubernetes' own default is 30.
GRACE, _KUBERNETES_GRACE = 10, 30

#: Seconds that a replica needs to exit after it has saved.
_EXIT = 2

#: Seconds after the job's own deadline when the cluster ends a pod that has no follower.
_AFTER_DEADLINE = 300


@dataclass(frozen=True, kw_only=True)
class PodSettings:
    """Where and how pods run, as set by the administrator.

    ``store_secret`` names a Secret whose keys become the variables for access to the store;
    ``queue`` is ``kueue:NAME`` or empty.
    """

    namespace: str
    image: str
    store_secret: str = ""
    pod_template: Template = field(default_factory=dict)
    service_account: str = ""
    queue: str = ""


def role_pod(
    job: Job, replica: ReplicaSpec, attempt: str, settings: PodSettings, queue: Kueue | None
) -> Manifest:
    """The part that the pods of a role share: all but their names and indices.

    Raises:
        SpecError: a template sets a reserved field, or no image is set.
    """
    pod = merge(_defaults(job, settings), {"spec": placement(replica.spot)})
    for template, where in (
        (settings.pod_template, "the pod template"),
        (replica.pod, f"the pod template of {replica.role}"),
    ):
        pod = merge(pod, checked(template, where), where)
    if queue is not None:
        of_queue = queue.metadata(replica.role.value, len(list(job.names())))
        pod = merge(pod, {"metadata": of_queue})
    pod = merge(pod, _reserved(job, replica, attempt, settings))
    container = pod["spec"]["containers"][0]
    for each in (*pod["spec"].get("initContainers", ()), *pod["spec"]["containers"]):
        # If a container fails before it can write a termination message, its log has the reason.
        each.setdefault("terminationMessagePolicy", "FallbackToLogsOnError")
    if not container.get("image"):
        raise SpecError(
            f"no image is set for {replica.role}; set [aerotrain] image, or the image "
            f"of the container {CONTAINER!r} in a pod template"
        )
    # A replica may save for as long as a template lets its pod end.
    seconds = pod["spec"].get("terminationGracePeriodSeconds", _KUBERNETES_GRACE)
    if seconds != GRACE and isinstance(seconds, int):  # Kubernetes rejects what is no number
        grace = float(max(seconds - _EXIT, seconds / 2))
        container["env"].append({"name": Variable.GRACE.value, "value": str(grace)})
    return pod


def replica_pod(
    pod: Manifest,
    job: str,
    name: ReplicaName,
    *,
    restarts: int = 0,
    avoid: str = "",
    memory: float = 1.0,
) -> Manifest:
    """The pod of one replica of the job of that name, at this restart count.

    ``pod``, which is modified, is that of any replica of its role. ``avoid`` is a node on which it
    should not be placed, ``memory`` the factor for its memory.
    """
    metadata, spec = pod["metadata"], pod["spec"]
    metadata["name"] = pod_name(job, name, restarts)
    metadata["labels"][INDEX_LABEL] = str(name.index)
    own = {Variable.INDEX.value: str(name.index)}
    if restarts:
        metadata.setdefault("annotations", {})[RESTARTS] = str(restarts)
        own[Variable.RESTARTS.value] = str(restarts)
    spec |= {"hostname": str(name), "subdomain": job}
    container = spec["containers"][0]
    shared = [each for each in container["env"] if each["name"] not in own]
    container["env"] = shared + [{"name": each, "value": value} for each, value in own.items()]
    for part in container["resources"].values():
        if memory != 1.0 and "memory" in part:
            part["memory"] = _more(part["memory"], memory)
    if avoid:  # unless there is no other node
        term = {"key": _NODE_LABEL, "operator": "NotIn", "values": [avoid]}
        affinity = spec.setdefault("affinity", {}).setdefault("nodeAffinity", {})
        affinity.setdefault("preferredDuringSchedulingIgnoredDuringExecution", []).append(
            {"weight": 100, "preference": {"matchExpressions": [term]}}
        )
    return pod


def _more(quantity: str, factor: float) -> str:
    """A quantity of memory times ``factor``, in MiB."""
    number = quantity.rstrip("KMGTPEkmi")
    unit = quantity[len(number) :]
    power = " kMGTPE".index(unit[0].replace("K", "k")) if unit else 0
    size = float(number) * (1024 if unit.endswith("i") else 1000) ** power
    return f"{math.ceil(size * factor / 2**20)}Mi"


def _defaults(job: Job, settings: PodSettings) -> Manifest:
    """What a template may change: the restricted pod standard, and a scratch disk.

    https://kubernetes.io/docs/concepts/security/pod-security-standards/
    """
    container = {
        "name": CONTAINER,
        "image": settings.image,
        "env": [
            {"name": "PYTHONUNBUFFERED", "value": "1"},
            {"name": "HOME", "value": SCRATCH},
            {"name": "TMPDIR", "value": f"{SCRATCH}/tmp"},
        ],
        "securityContext": {
            # An image without a group would run in group 0, root's. Not set for the pod: containerd
            # rejects a group without a user, and the user is that of the image.
            "runAsGroup": _NOT_ROOT,
            "allowPrivilegeEscalation": False,
            "capabilities": {"drop": ["ALL"]},
            "readOnlyRootFilesystem": True,
        },
        "volumeMounts": [
            {"name": "scratch", "mountPath": SCRATCH},
            {"name": "scratch", "mountPath": "/tmp", "subPath": "tmp"},
        ],
        "livenessProbe": _liveness(job),
    }
    spec = {
        "automountServiceAccountToken": False,
        "enableServiceLinks": False,
        "terminationGracePeriodSeconds": GRACE,
        "securityContext": {"runAsNonRoot": True, "seccompProfile": {"type": "RuntimeDefault"}},
        "containers": [container],
        "volumes": [{"name": "scratch", "emptyDir": {}}],
    }
    if settings.service_account:
        spec["serviceAccountName"] = settings.service_account
    return {"apiVersion": "v1", "kind": "Pod", "spec": spec}


def _liveness(job: Job) -> dict[str, Any]:
    """The probe that ends an unresponsive replica, by the age of a file that the replica touches.

    A missing file counts as new. There is no probe while a longer timeout is valid. It writes the
    termination message: a killed container has the same status as after a SIGKILL from elsewhere.
    """
    allowed = int(job.deadlines.progress_timeout)
    said = TerminationMessage(reason=f"had no heartbeat for {allowed} s", no_heartbeat=True)
    first = heartbeat_timeout(job, trains=False)
    beat = f"stat -c %Y {SCRATCH}/heartbeat 2>/dev/null || date +%s"
    age = f"$(($(date +%s) - $({beat})))"
    text = said.to_text().replace("\n", "\\n")
    message = f"printf {shlex.quote(text)} >{TERMINATION_LOG}"
    return {
        "exec": {"command": ["sh", "-c", f"test {age} -le {allowed} || {{ {message}; false; }}"]},
        **({"initialDelaySeconds": int(first)} if first > job.deadlines.progress_timeout else {}),
        "periodSeconds": 5,
        "timeoutSeconds": 10,
        "failureThreshold": 1,
        "terminationGracePeriodSeconds": 1,  # a frozen process cannot use more
    }


def _reserved(job: Job, replica: ReplicaSpec, attempt: str, settings: PodSettings) -> Manifest:
    """The fields that come from the job, or that the group depends on; no template changes them."""
    variables = {
        Variable.ROLE.value: replica.role.value,
        Variable.ATTEMPT.value: attempt,
        # Kubernetes would replace $(NAME) by another variable.
        **{
            name: text.replace("$", "$$")
            for name, text in role_environment(job, replica.role).items()
        },
    }
    sources = {
        Variable.JOB.value: {"configMapKeyRef": {"name": job.name, "key": "job.json"}},
        Variable.CLUSTER.value: {"configMapKeyRef": {"name": job.name, "key": "cluster.json"}},
        Variable.NODE.value: {"fieldRef": {"fieldPath": "spec.nodeName"}},
    }
    container: dict[str, Any] = {
        "name": CONTAINER,
        "command": ["python", "-m", "aerotrain.replica"],
        "workingDir": SCRATCH,
        "ports": [{"name": "grpc", "containerPort": PORT, "protocol": "TCP"}],
        "env": [
            *({"name": name, "valueFrom": source} for name, source in sources.items()),
            *({"name": name, "value": text} for name, text in variables.items()),
        ],
        "resources": _resources(replica.resources),
    }
    spec: dict[str, Any] = {
        "restartPolicy": "Never",
        "activeDeadlineSeconds": int(job.deadlines.run) + _AFTER_DEADLINE,
        "containers": [container],
    }
    if settings.store_secret:
        container["envFrom"] = [{"secretRef": {"name": settings.store_secret}}]
    shared_memory = replica.resources.shared_memory
    if shared_memory is None and replica.resources.gpu > 1:
        shared_memory = _SHARED_BY_GPUS
    if shared_memory:
        container["volumeMounts"] = [{"name": _SHARED_MEMORY, "mountPath": "/dev/shm"}]
        memory = {"medium": "Memory", "sizeLimit": shared_memory}
        spec["volumes"] = [{"name": _SHARED_MEMORY, "emptyDir": memory}]
    metadata = {
        "labels": {ROLE_LABEL: replica.role.value},
        "annotations": {"aerotrain/run": job.run, "aerotrain/task": job.task},
    }
    return {"metadata": metadata, "spec": spec}


def _resources(resources: Resources) -> dict[str, Any]:
    """Memory: request and limit are equal. Cores: a request without a limit."""
    whole = resources.cpu == int(resources.cpu)
    cpu = f"{int(resources.cpu)}" if whole else f"{max(1, round(resources.cpu * 1000))}m"
    limits = {"memory": resources.memory}
    if resources.gpu:
        limits[resources.gpu_resource] = str(resources.gpu)
    if resources.tpu:
        limits["google.com/tpu"] = str(resources.tpu)
    return {"requests": {"cpu": cpu, "memory": resources.memory}, "limits": limits}


def server_pod(image: str) -> Template:
    """The pod template with a server of that image, which watches the replica's scratch disk.

    It is a sidecar: https://kubernetes.io/docs/concepts/workloads/pods/sidecar-containers/. So the
    pod ends when the replica does.
    """
    folder = f"{SCRATCH}/{SERVED}/{SIDECAR_MODEL}"
    server = {
        "name": "server",
        "image": image,
        "restartPolicy": "Always",
        "command": ["tensorflow_model_server"],
        "args": [
            f"--port={GRPC_PORT}",
            f"--rest_api_port={REST_PORT}",
            f"--model_name={SIDECAR_MODEL}",
            f"--model_base_path={folder}",
            "--file_system_poll_wait_seconds=1",
        ],
        "volumeMounts": [{"name": "scratch", "mountPath": SCRATCH, "readOnly": True}],
        "resources": {
            "requests": {"cpu": "500m", "memory": "512Mi"},
            "limits": {"memory": "2Gi"},
        },
        "securityContext": {
            "runAsNonRoot": True,
            "runAsUser": _NOT_ROOT,  # that image runs as root
            "runAsGroup": _NOT_ROOT,
            "allowPrivilegeEscalation": False,
            "capabilities": {"drop": ["ALL"]},
        },
    }
    replica = {"name": CONTAINER, "env": [{"name": Variable.SERVER.value, "value": "1"}]}
    return {"spec": {"initContainers": [server], "containers": [replica]}}
