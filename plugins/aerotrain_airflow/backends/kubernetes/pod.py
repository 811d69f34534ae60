"""The pod of one role: our defaults, the templates on top of them, and what is ours over all."""

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Self

from aerotrain.contract.errors import SpecError
from aerotrain.contract.job import Job, Replica, Resources, Role
from aerotrain.contract.recovery import Topology
from aerotrain_airflow.backends.kubernetes.address import CONTAINER, JOB_LABEL, ROLE_LABEL
from aerotrain_airflow.backends.kubernetes.template import Template, checked, merge

Manifest = dict[str, Any]

#: Where a replica serves TensorFlow's gRPC.
PORT = 2222

SCRATCH = "/scratch"
_SHARED_MEMORY = "shared-memory"

#: Seconds from SIGTERM to SIGKILL; a replica leaves within 2.
_GRACE = 10

#: Seconds after the job's own deadline when the cluster ends a pod that nobody looks after.
_AFTER_DEADLINE = 300


@dataclass(frozen=True)
class Queue:
    """Who admits a job's pods as a whole: Kueue, Volcano, or nobody."""

    system: str = ""
    name: str = ""

    @classmethod
    def parse(cls, text: str) -> Self:
        """Read ``kueue:NAME``, ``volcano:NAME`` or nothing.

        Raises:
            SpecError: it is none of these.
        """
        if not text:
            return cls()
        system, _, name = text.partition(":")
        if system not in ("kueue", "volcano") or not name:
            raise SpecError(
                f"[aerotrain] queue is {text!r}; write kueue:NAME or volcano:NAME, or nothing"
            )
        return cls(system, name)


@dataclass(frozen=True, kw_only=True)
class PodSettings:
    """Where and how pods run, as an administrator sets it.

    ``store_secret`` names a Secret whose keys become the variables that reach the store;
    ``queue`` is ``kueue:NAME``, ``volcano:NAME`` or nothing.
    """

    namespace: str = "default"
    image: str
    store_secret: str = ""
    pod_template: Template = field(default_factory=dict)
    service_account: str = ""
    queue: str = ""


def role_pod(job: Job, replica: Replica, attempt: str, settings: PodSettings) -> Manifest:
    """What the pods of that role share: all but their names and their indices.

    Raises:
        SpecError: a template sets what is ours, or nobody names an image.
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
            f"nobody says which image {replica.role} runs; set [aerotrain] image, or the image "
            f"of the container {CONTAINER!r} in a pod template"
        )
    return pod


def _defaults(job: Job, replica: Replica, settings: PodSettings) -> Manifest:
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
        "terminationGracePeriodSeconds": _GRACE,
        "securityContext": {"runAsNonRoot": True, "seccompProfile": {"type": "RuntimeDefault"}},
        **_apart(job, replica),
        "containers": [container],
        "volumes": [{"name": "scratch", "emptyDir": {}}],
    }
    return {"apiVersion": "v1", "kind": "Pod", "metadata": {}, "spec": spec}


def _liveness(job: Job) -> dict[str, Any]:
    """Ends a replica that is alive and gives no sign of life: it touches a file as long as it can.

    Before it has begun to, it is not asked for more. TensorFlow lets no Python run while the
    members of a gang wait for each other, so they are not asked before all should have started.
    """
    forms = Topology.of(job) is Topology.GANG
    beat = f"stat -c %Y {SCRATCH}/heartbeat 2>/dev/null || date +%s"
    age = f"$(($(date +%s) - $({beat})))"
    return {
        "exec": {"command": ["sh", "-c", f"test {age} -le {int(job.deadlines.progress_timeout)}"]},
        **({"initialDelaySeconds": int(job.deadlines.start)} if forms else {}),
        "periodSeconds": 5,
        "timeoutSeconds": 10,
        "failureThreshold": 1,
        "terminationGracePeriodSeconds": 1,  # what is frozen has no use for more
    }


def _apart(job: Job, replica: Replica) -> dict[str, Any]:
    """What computes or reads spread over the nodes, ps each on its own, as far as there are any."""
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


def _ours(job: Job, replica: Replica, attempt: str, settings: PodSettings) -> Manifest:
    """What comes from the job, or keeps the set together; no template changes it."""
    queue = Queue.parse(settings.queue)
    spec: dict[str, Any] = {
        "restartPolicy": "Never",
        "activeDeadlineSeconds": int(job.deadlines.run) + _AFTER_DEADLINE,
        "containers": [_container(job, replica, attempt, settings)],
    }
    if replica.resources.shared_memory:
        memory = {"medium": "Memory", "sizeLimit": replica.resources.shared_memory}
        spec["volumes"] = [{"name": _SHARED_MEMORY, "emptyDir": memory}]
    if queue.system == "volcano":
        spec["schedulerName"] = "volcano"
    labels, annotations = _admission(job, attempt, queue)
    metadata = {
        "labels": {**labels, ROLE_LABEL: replica.role.value},
        "annotations": {"aerotrain/run": job.run, "aerotrain/task": job.task, **annotations},
    }
    return {"metadata": metadata, "spec": spec}


def _container(job: Job, replica: Replica, attempt: str, settings: PodSettings) -> dict[str, Any]:
    container: dict[str, Any] = {
        "name": CONTAINER,
        "command": ["python", "-m", "aerotrain.replica"],
        "workingDir": SCRATCH,
        # Python that does not come as far as our own last words leaves them in its log.
        "terminationMessagePolicy": "FallbackToLogsOnError",
        "ports": [{"name": "grpc", "containerPort": PORT, "protocol": "TCP"}],
        "env": [
            _from_owner("AEROTRAIN_JOB", job, "job.json"),
            _from_owner("AEROTRAIN_CLUSTER", job, "cluster.json"),
            {"name": "AEROTRAIN_ROLE", "value": replica.role.value},
            {"name": "AEROTRAIN_ATTEMPT", "value": attempt},
            *(
                # Kubernetes would put other variables in the place of $(NAME).
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
    """Memory is promised and no more is given; cores are promised and more may be had."""
    whole = resources.cpu == int(resources.cpu)
    cpu = f"{int(resources.cpu)}" if whole else f"{max(1, round(resources.cpu * 1000))}m"
    limits = {"memory": resources.memory}
    if resources.gpu:
        limits["nvidia.com/gpu"] = str(resources.gpu)
    if resources.tpu:
        limits["google.com/tpu"] = str(resources.tpu)
    return {"requests": {"cpu": cpu, "memory": resources.memory}, "limits": limits}


def _admission(job: Job, attempt: str, queue: Queue) -> tuple[Mapping[str, str], Mapping[str, str]]:
    """The labels and annotations by which a queue knows the pods of a group.

    https://kueue.sigs.k8s.io/docs/tasks/run/plain_pods/ and
    https://volcano.sh/en/docs/podgroup/
    """
    if queue.system == "kueue":
        # A name of this launch alone: Kueue would count its pods among those of the last one,
        # as long as it remembers that as a group that has finished.
        launch = hashlib.sha256(attempt.encode()).hexdigest()[:8]
        labels = {
            "kueue.x-k8s.io/queue-name": queue.name,
            "kueue.x-k8s.io/pod-group-name": f"{job.name[:54]}-{launch}",
        }
        count = str(len(list(job.names())))
        return labels, {"kueue.x-k8s.io/pod-group-total-count": count}
    if queue.system == "volcano":
        return {}, {"scheduling.k8s.io/group-name": job.name}
    return {}, {}
