"""Makes the manifests that run a job as pods: a value, without side effects.

One ConfigMap owns all other objects, so that one deletion removes all. The manifests have no owner
uid, which only the cluster assigns; their YAML also works with ``kubectl apply``.
"""

import hashlib
import json
from dataclasses import dataclass, replace
from typing import Any

import yaml

from aerotrain.contract.environment import Variable, cluster_of
from aerotrain.contract.errors import SpecError
from aerotrain.contract.job import Job
from aerotrain.contract.layout import DNS_LABEL_LENGTH
from aerotrain.contract.replicas import ALONE, ReplicaName
from aerotrain_airflow.kubernetes.identity import (
    ATTEMPT,
    DESCRIPTION,
    JOB_LABEL,
    QUEUE,
    Handle,
    pod_name,
)
from aerotrain_airflow.kubernetes.kueue import Kueue, queue_named
from aerotrain_airflow.kubernetes.pod import PORT, Manifest, PodSettings, replica_pod, role_pod

__all__ = ["PodPlan", "PodSettings", "plan_pods"]

#: Linux limits a variable, including its name, to this size: MAX_ARG_STRLEN in execve(2).
_LONGEST_VARIABLE = 128 * 1024

#: The version of what a group stores in its owner. Groups with another one are not adopted.
LAYOUT = 7


@dataclass(frozen=True, kw_only=True)
class PodPlan:
    """All objects that one launch of a job would create in a namespace.

    ``others`` are in the order of their creation; ``description`` is the same for every launch of
    the same job, and different if anything but the choice of spot nodes differs: the last try has
    another one, and takes over a group that can still succeed.
    """

    job: Job
    attempt: str
    namespace: str
    queue: Kueue | None
    description: str
    owner: Manifest
    others: tuple[Manifest, ...]

    @property
    def handle(self) -> str:
        """``namespace/job/attempt``."""
        return str(Handle(self.namespace, self.job.name, self.attempt))

    @property
    def pods(self) -> list[Manifest]:
        return [each for each in self.others if each["kind"] == "Pod"]

    def __str__(self) -> str:
        # Copied, so that no parts are shared: YAML anchors and aliases are hard to read.
        manifests = json.loads(json.dumps((self.owner, *self.others)))
        return yaml.dump_all(manifests, Dumper=yaml.CSafeDumper, sort_keys=False, width=1000)


def plan_pods(job: Job, attempt: str, settings: PodSettings) -> PodPlan:
    """The manifests of one launch of ``job``.

    Raises:
        SpecError: the job cannot run as pods, or a template sets a reserved field.
    """
    _check(job, settings)
    anywhere = replace(job, replicas=tuple(replace(each, spot=None) for each in job.replicas))
    anonymous = json.dumps([LAYOUT, _manifests(anywhere, "", settings)], sort_keys=True)
    description = hashlib.sha256(anonymous.encode()).hexdigest()
    owner, *others = _manifests(job, attempt, settings)
    owner["metadata"]["annotations"] = {
        ATTEMPT: attempt,
        DESCRIPTION: description,
        **({QUEUE: settings.queue} if settings.queue else {}),
    }
    return PodPlan(
        job=job,
        attempt=attempt,
        namespace=settings.namespace,
        queue=queue_named(settings.queue, job.name, attempt),
        description=description,
        owner=owner,
        others=tuple(others),
    )


def _check(job: Job, settings: PodSettings) -> None:
    longest = max((pod_name(job.name, name) for name in job.names()), key=len)
    if len(longest) > DNS_LABEL_LENGTH:
        raise SpecError(
            f"the pod {longest!r} would have a name of {len(longest)} letters and "
            f"{DNS_LABEL_LENGTH} are allowed; give the job a shorter name"
        )
    if settings.queue and len(job.sizes) > 1:
        raise SpecError(
            f"{job.name} asks for {job.sizes[0]} to {job.sizes[-1]} workers, and Kueue admits "
            f"groups of a fixed number; give one number, or have [aerotrain] queue unset"
        )
    if job.store.startswith("file://"):
        raise SpecError(
            f"the store of {job.name} is {job.store!r}, and pods share no disk; set "
            "[aerotrain] store to an s3:// URL"
        )
    if job.code is not None and ("://" not in job.code or job.code.startswith("file://")):
        raise SpecError(
            f"the code of {job.name} is {job.code!r}, which no pod can reach; pack it into the "
            "store and give the archive's s3:// URL"
        )


def _manifests(job: Job, attempt: str, settings: PodSettings) -> list[Manifest]:
    """The owner, what all pods need, and a pod for every replica.

    The part that a role's pods share is computed once.
    """
    queue = queue_named(settings.queue, job.name, attempt)
    shared = {
        replica.role: json.dumps(role_pod(job, replica, attempt, settings, queue))
        for replica in job.replicas
    }
    pods = [replica_pod(json.loads(shared[name.role]), job.name, name) for name in job.names()]
    return [
        _named(_owner(job), job, settings.namespace),
        *shared_objects(job, settings.namespace),
        *(_named(pod, job, settings.namespace) for pod in pods),
    ]


def _named(manifest: Manifest, job: Job, namespace: str) -> Manifest:
    metadata = manifest.get("metadata", {})
    labels = {
        "app.kubernetes.io/name": "aerotrain",
        "app.kubernetes.io/managed-by": "aerotrain",
        JOB_LABEL: job.name,
        **metadata.get("labels", {}),
    }
    named = {"name": job.name, "namespace": namespace, **metadata, "labels": labels}
    return {"apiVersion": "v1", **manifest, "metadata": named}


def _owner(job: Job) -> Manifest:
    """The ConfigMap with what the replicas share, and the owner of all other objects."""
    hosts = {
        each.role: each.role if each.role in ALONE else f"{each.role}-[0-{each.count - 1}]"
        for each in job.replicas
    }
    addresses = {ReplicaName(role, 0): f"{host}.{job.name}:{PORT}" for role, host in hosts.items()}
    data = {
        "job.json": job.to_json(),
        "cluster.json": json.dumps(cluster_of(job, addresses), sort_keys=True),
    }
    for key, text in data.items():
        size = len(f"{Variable.CLUSTER}=") + len(text.encode()) + 1
        if size > _LONGEST_VARIABLE:
            raise SpecError(
                f"the {key} of {job.name} takes {size} bytes and a variable holds "
                f"{_LONGEST_VARIABLE}; put what is large in its arguments into the store"
            )
    return {"kind": "ConfigMap", "data": data}


def shared_objects(job: Job, namespace: str) -> list[Manifest]:
    """The objects that all pods of a job need while they run.

    A Service gives them DNS names, also before they are ready, because they wait for each other. A
    NetworkPolicy allows only the job's own pods to reach them: TensorFlow's servers do not
    authenticate.
    """
    own = {JOB_LABEL: job.name}
    rule: dict[str, Any] = {"from": [{"podSelector": {"matchLabels": own}}]}
    if not any(replica.resources.gpu for replica in job.replicas):
        rule["ports"] = [{"protocol": "TCP", "port": PORT}]  # NCCL would choose others
    several = len(list(job.names())) > 1
    policy = {
        "apiVersion": "networking.k8s.io/v1",
        "kind": "NetworkPolicy",
        "spec": {
            "podSelector": {"matchLabels": own},
            "policyTypes": ["Ingress"],
            "ingress": [rule] if several else [],
        },
    }
    service = {
        "kind": "Service",
        "spec": {
            "clusterIP": "None",
            "publishNotReadyAddresses": True,
            "selector": own,
            "ports": [{"name": "grpc", "port": PORT, "targetPort": PORT, "protocol": "TCP"}],
        },
    }
    objects = [service, policy] if several else [policy]
    return [_named(each, job, namespace) for each in objects]
