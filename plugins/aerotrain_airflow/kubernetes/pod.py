"""The pod of a replica: defaults, the templates on top of them, and then the reserved fields."""

import shlex
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from aerotrain.contract.environment import Variable
from aerotrain.contract.errors import TERMINATION_LOG, SpecError, TerminationMessage
from aerotrain.contract.job import Job
from aerotrain.contract.replicas import ReplicaName, ReplicaSpec, Resources, Role
from aerotrain.contract.steps import GRPC_PORT, REST_PORT, SERVED, SIDECAR_MODEL
from aerotrain.launch.restart_policy import heartbeat_timeout
from aerotrain_airflow.kubernetes.identity import (
    CONTAINER,
    INDEX_LABEL,
    JOB_LABEL,
    KUEUE_QUEUE,
    RESTARTS,
    ROLE_LABEL,
    kueue_group,
    pod_name,
)
from aerotrain_airflow.kubernetes.template import Template, checked, merge

Manifest = dict[str, Any]

#: The port of a replica's TensorFlow server (gRPC).
PORT = 2222

SCRATCH = "/scratch"

#: The group of replicas, as in images/training: no group of the system.
_GROUP = 65532
_SHARED_MEMORY = "shared-memory"

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

    @property
    def local_queue(self) -> str:
        """The LocalQueue of Kueue that admits a job's pods as a whole; empty without one.

        Raises:
            SpecError: ``queue`` does not name one.
        """
        system, _, name = self.queue.partition(":")
        if self.queue and (system != "kueue" or not name):
            raise SpecError(f"[aerotrain] queue is {self.queue!r}; write kueue:NAME, or nothing")
        return name


def role_pod(job: Job, replica: ReplicaSpec, attempt: str, settings: PodSettings) -> Manifest:
    """The part that the pods of a role share: all but their names and indices.

    Raises:
        SpecError: a template sets a reserved field, or no image is set.
    """
    pod = _defaults(job, replica, settings)
    for template, where in (
        (settings.pod_template, "the pod template"),
        (replica.pod, f"the pod template of {replica.role}"),
    ):
        pod = merge(pod, checked(template, where))
    pod = merge(pod, _ours(job, replica, attempt, settings))
    if not pod["spec"]["containers"][0].get("image"):
        raise SpecError(
            f"no image is set for {replica.role}; set [aerotrain] image, or the image "
            f"of the container {CONTAINER!r} in a pod template"
        )
    _set_grace(pod["spec"])
    return pod


def _set_grace(spec: dict[str, Any]) -> None:
    """Pass the pod's grace period on to the replica, if a template has changed it."""
    seconds = spec.get("terminationGracePeriodSeconds", _KUBERNETES_GRACE)
    if seconds != GRACE and isinstance(seconds, int):  # Kubernetes rejects what is no number
        grace = max(seconds - _EXIT, seconds / 2)
        variable = {"name": Variable.GRACE.value, "value": str(float(grace))}
        spec["containers"][0]["env"].append(variable)


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
    pod["spec"] = spec = {"hostname": str(name), "subdomain": job} | spec
    spec["hostname"] = str(name)  # also if ``pod`` is that of another replica
    container = spec["containers"][0]
    shared = [each for each in container["env"] if each["name"] not in own]
    container["env"] = shared + [{"name": each, "value": value} for each, value in own.items()]
    if memory != 1.0:
        for part in container["resources"].values():
            if "memory" in part:
                part["memory"] = _more(part["memory"], memory)
    if avoid:
        _avoid(spec, avoid)
    return pod


def _avoid(spec: dict[str, Any], node: str) -> None:
    """Prefer other nodes, but allow this one if there is no other."""
    term = {"key": "kubernetes.io/hostname", "operator": "NotIn", "values": [node]}
    preference = {"weight": 100, "preference": {"matchExpressions": [term]}}
    affinity = spec.setdefault("affinity", {}).setdefault("nodeAffinity", {})
    affinity.setdefault("preferredDuringSchedulingIgnoredDuringExecution", []).append(preference)


def _more(quantity: str, factor: float) -> str:
    """A quantity of memory times ``factor``, in the same unit if that gives a whole number."""
    number = quantity.rstrip("KMGTPEkmi")
    unit = quantity[len(number) :]
    smaller = {"Ei": "Pi", "Pi": "Ti", "Ti": "Gi", "Gi": "Mi", "Mi": "Ki"}
    amount = float(number) * factor
    while amount != int(amount) and unit in smaller:
        amount, unit = amount * 1024, smaller[unit]
    return f"{int(amount)}{unit}"


def _defaults(job: Job, replica: ReplicaSpec, settings: PodSettings) -> Manifest:
    """What a template may change: the restricted pod standard, a scratch disk, and spreading.

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
            "runAsGroup": _GROUP,
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
    account = {"serviceAccountName": settings.service_account} if settings.service_account else {}
    spec = {
        **account,
        "automountServiceAccountToken": False,
        "enableServiceLinks": False,
        "terminationGracePeriodSeconds": GRACE,
        "securityContext": {"runAsNonRoot": True, "seccompProfile": {"type": "RuntimeDefault"}},
        **_apart(job, replica),
        "containers": [container],
        "volumes": [{"name": "scratch", "emptyDir": {}}],
    }
    return {"apiVersion": "v1", "kind": "Pod", "metadata": {}, "spec": spec}


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


def _apart(job: Job, replica: ReplicaSpec) -> dict[str, Any]:
    """Spread replicas that compute or read over the nodes; put each ps on its own if possible."""
    same = {"matchLabels": {JOB_LABEL: job.name, ROLE_LABEL: replica.role.value}}
    node = "kubernetes.io/hostname"
    if replica.count > 1 and replica.role in (Role.WORKER, Role.INPUT):
        constraint = {
            "maxSkew": 1,
            "topologyKey": node,
            "whenUnsatisfiable": "ScheduleAnyway",
            "labelSelector": same,
        }
        return {"topologySpreadConstraints": [constraint]}
    if replica.count > 1 and replica.role is Role.PS:
        term = {"topologyKey": node, "labelSelector": same}
        preferred = [{"weight": 100, "podAffinityTerm": term}]
        anti = {"preferredDuringSchedulingIgnoredDuringExecution": preferred}
        return {"affinity": {"podAntiAffinity": anti}}
    return {}


def _ours(job: Job, replica: ReplicaSpec, attempt: str, settings: PodSettings) -> Manifest:
    """The fields that come from the job, or that the group depends on; no template changes them."""
    spec: dict[str, Any] = {
        "restartPolicy": "Never",
        "activeDeadlineSeconds": int(job.deadlines.run) + _AFTER_DEADLINE,
        "containers": [_container(job, replica, attempt, settings)],
    }
    if replica.resources.shared_memory:
        memory = {"medium": "Memory", "sizeLimit": replica.resources.shared_memory}
        spec["volumes"] = [{"name": _SHARED_MEMORY, "emptyDir": memory}]
    labels, annotations = _admission(job, replica, attempt, settings.local_queue)
    metadata = {
        "labels": {**labels, ROLE_LABEL: replica.role.value},
        "annotations": {"aerotrain/run": job.run, "aerotrain/task": job.task, **annotations},
    }
    return {"metadata": metadata, "spec": spec}


def _container(
    job: Job, replica: ReplicaSpec, attempt: str, settings: PodSettings
) -> dict[str, Any]:
    node = {"fieldRef": {"fieldPath": "spec.nodeName"}}
    container: dict[str, Any] = {
        "name": CONTAINER,
        "command": ["python", "-m", "aerotrain.replica"],
        "workingDir": SCRATCH,
        # If Python fails before it can write a termination message, the log has the reason.
        "terminationMessagePolicy": "FallbackToLogsOnError",
        "ports": [{"name": "grpc", "containerPort": PORT, "protocol": "TCP"}],
        "env": [
            _from_owner(Variable.JOB.value, job, "job.json"),
            _from_owner(Variable.CLUSTER.value, job, "cluster.json"),
            {"name": Variable.ROLE.value, "value": replica.role.value},
            {"name": Variable.ATTEMPT.value, "value": attempt},
            {"name": Variable.NODE.value, "valueFrom": node},
            *(
                # Kubernetes would replace $(NAME) by another variable.
                {"name": name, "value": value.replace("$", "$$")}
                for name, value in replica.environment.items()
            ),
        ],
        "resources": _resources(replica.resources),
    }
    if settings.store_secret:
        container["envFrom"] = [{"secretRef": {"name": settings.store_secret}}]
    if replica.resources.shared_memory:
        container["volumeMounts"] = [{"name": _SHARED_MEMORY, "mountPath": "/dev/shm"}]
    return container


def _from_owner(variable: str, job: Job, key: str) -> dict[str, Any]:
    return {"name": variable, "valueFrom": {"configMapKeyRef": {"name": job.name, "key": key}}}


def _resources(resources: Resources) -> dict[str, Any]:
    """Memory: request and limit are equal. Cores: a request without a limit."""
    whole = resources.cpu == int(resources.cpu)
    cpu = f"{int(resources.cpu)}" if whole else f"{max(1, round(resources.cpu * 1000))}m"
    limits = {"memory": resources.memory}
    if resources.gpu:
        limits["nvidia.com/gpu"] = str(resources.gpu)
    if resources.tpu:
        limits["google.com/tpu"] = str(resources.tpu)
    return {"requests": {"cpu": cpu, "memory": resources.memory}, "limits": limits}


def _admission(
    job: Job, replica: ReplicaSpec, attempt: str, queue: str
) -> tuple[Mapping[str, str], Mapping[str, str]]:
    """The labels and annotations by which Kueue identifies the pods of a group.

    https://kueue.sigs.k8s.io/docs/tasks/run/plain_pods/
    """
    if not queue:
        return {}, {}
    labels = {KUEUE_QUEUE: queue, "kueue.x-k8s.io/pod-group-name": kueue_group(job.name, attempt)}
    # By default Kueue hashes resources and affinity, and so a restarted pod that has more memory or
    # avoids a node would replace none of its role.
    return labels, {
        "kueue.x-k8s.io/pod-group-total-count": str(len(list(job.names()))),
        "kueue.x-k8s.io/role-hash": replica.role.value,
    }


#: Not root, which is the user of TensorFlow Serving's image.
_USER = 65532


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
            "runAsUser": _USER,
            "runAsGroup": _USER,
            "allowPrivilegeEscalation": False,
            "capabilities": {"drop": ["ALL"]},
        },
    }
    replica = {"name": CONTAINER, "env": [{"name": Variable.SERVER.value, "value": "1"}]}
    return {"spec": {"initContainers": [server], "containers": [replica]}}
