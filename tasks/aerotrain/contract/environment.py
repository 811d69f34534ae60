"""The environment of a replica: what its launcher sets, and what TensorFlow reads.

A launcher gives every replica of a job the same cluster. The replica adds its own role and index
to it, so that a launcher can share one object between all replicas. The entry of the replica's
process reads these variables, once, and passes their values on.
"""

import json
from collections.abc import Iterable, Mapping, MutableMapping
from enum import StrEnum

from aerotrain.contract.job import Job
from aerotrain.contract.replicas import CLUSTERED, ReplicaName, Role


class Variable(StrEnum):
    """The variables of a replica."""

    JOB = "AEROTRAIN_JOB"  # as JSON
    CLUSTER = "AEROTRAIN_CLUSTER"  # as JSON, for ``read_cluster``
    ROLE = "AEROTRAIN_ROLE"
    INDEX = "AEROTRAIN_INDEX"
    ATTEMPT = "AEROTRAIN_ATTEMPT"
    RESTARTS = "AEROTRAIN_RESTARTS"  # the number of restarts of this replica, by the launcher
    HEARTBEAT = "AEROTRAIN_HEARTBEAT"  # the file that the replica touches while it is alive
    TERMINATION_LOG = "AEROTRAIN_TERMINATION_LOG"  # the file of its termination message
    NODE = "AEROTRAIN_NODE"  # the machine, where the host name is that of the replica, as in a pod
    SERVER = "MODEL_SERVER"  # set by the pod template with a sidecar of serve_check
    WITHOUT = "AEROTRAIN_WITHOUT"  # the workers that take no part in the cluster, by name
    GRACE = "AEROTRAIN_GRACE"  # seconds that it may take to save after it was preempted


#: DTensor reads these, and not TF_CONFIG: all addresses, a name for all, and the own index.
_DTENSOR = ("DTENSOR_JOBS", "DTENSOR_JOB_NAME", "DTENSOR_CLIENT_ID")

Addresses = Mapping[ReplicaName, str]

#: The addresses of replicas by role, in the order of their indices. Empty if a replica runs alone.
Cluster = Mapping[str, list[str]]


def cluster_of(job: Job, addresses: Addresses) -> Cluster:
    """The cluster of a job, from the ``host:port`` of each replica, or of all of a role.

    As in Slurm's lists of hosts, ``worker-[0-9]`` stands for ten hosts: Linux limits the size of a
    variable.

    The evaluator receives the cluster but is not a member of it, as in TensorFlow's estimators:
    https://www.tensorflow.org/api_docs/python/tf/distribute/cluster_resolver/TFConfigClusterResolver
    """
    cluster: dict[str, list[str]] = {}
    if job.count(Role.WORKER) or job.count(Role.INPUT):
        for name, address in addresses.items():
            if name.role is not Role.EVALUATOR:
                cluster.setdefault(name.role.value, []).append(address)
    return cluster


def read_cluster(text: str) -> dict[str, list[str]]:
    """The cluster in the variable CLUSTER, with the address of each replica."""
    return {
        role: [address for each in listed for address in _addresses(each)]
        for role, listed in json.loads(text).items()
    }


def _addresses(listed: str) -> list[str]:
    begin, is_several, rest = listed.partition("[")
    if not is_several:
        return [listed]
    numbers, _, end = rest.partition("]")
    first, _, last = numbers.partition("-")
    return [f"{begin}{number}{end}" for number in range(int(first), int(last) + 1)]


def replica_environment(
    job: Job,
    replica: ReplicaName,
    addresses: Addresses,
    attempt: str,
    restarts: int = 0,
    without: Iterable[ReplicaName] = (),
) -> dict[str, str]:
    """The variables that describe a replica; a launcher adds credentials to them.

    The workers ``without`` take no part in the cluster.

    A launcher may add HEARTBEAT, whose default is ``heartbeat`` in the working directory, and
    TERMINATION_LOG, whose default is the file that Kubernetes reads.
    """
    return {
        **role_environment(job, replica.role),
        Variable.JOB: job.to_json(),
        Variable.CLUSTER: json.dumps(cluster_of(job, addresses), sort_keys=True),
        Variable.ROLE: replica.role.value,
        Variable.INDEX: str(replica.index),
        Variable.ATTEMPT: attempt,
        Variable.RESTARTS: str(restarts),
        **without_variable(without),
    }


def role_environment(job: Job, role: Role) -> dict[str, str]:
    """The variables that are equal for all replicas of a role.

    A role that neither trains nor asks for a GPU sees none, as TensorFlow would take its memory.
    """
    own = job.replica(role)
    sees_gpus = own.resources.gpu or job.trains(role)
    return {**({} if sees_gpus else {"CUDA_VISIBLE_DEVICES": "-1"}), **own.environment}


def without_variable(without: Iterable[ReplicaName]) -> dict[str, str]:
    """The variable that names the workers which take no part in the cluster; none if all do."""
    names = " ".join(map(str, sorted(without)))
    return {Variable.WITHOUT: names} if names else {}


def without_of(environment: Mapping[str, str]) -> frozenset[str]:
    """The names of the workers that take no part in the cluster."""
    return frozenset(environment.get(Variable.WITHOUT, "").split())


def replica_of(environment: Mapping[str, str]) -> ReplicaName:
    """The replica that a launcher's variables describe."""
    return ReplicaName(Role(environment[Variable.ROLE]), int(environment[Variable.INDEX]))


def tf_config(cluster: Cluster, replica: ReplicaName) -> str | None:
    """The TF_CONFIG of one replica, or None if the replica is not part of a TensorFlow cluster."""
    members = {role.value: cluster[role] for role in CLUSTERED if role in cluster}
    if Role.WORKER not in members or replica.role is Role.INPUT:
        return None
    task = {"type": replica.role.value, "index": replica.index}
    return json.dumps({"cluster": members, "task": task}, sort_keys=True)


def set_tensorflow_variables(environment: MutableMapping[str, str]) -> None:
    """Set what TensorFlow reads from a launcher's variables, and replace existing values.

    Call this before TensorFlow builds a strategy.
    """
    cluster, replica = read_cluster(environment[Variable.CLUSTER]), replica_of(environment)
    if without := without_of(environment):  # TensorFlow numbers workers without a gap
        names = [ReplicaName(Role.WORKER, index) for index in range(len(cluster[Role.WORKER]))]
        members = [each for each in names if str(each) not in without]
        cluster[Role.WORKER] = [cluster[Role.WORKER][each.index] for each in members]
        if replica in members:
            replica = ReplicaName(Role.WORKER, members.index(replica))
    clients = [*cluster.get(Role.CHIEF, []), *cluster.get(Role.WORKER, [])]
    config = tf_config(cluster, replica)
    variables = {"TF_CONFIG": config, **dict.fromkeys(_DTENSOR)}
    if config is not None and replica.role in (Role.CHIEF, Role.WORKER):
        client = replica.index + (replica.role is Role.WORKER)
        variables |= zip(_DTENSOR, (",".join(clients), "worker", str(client)), strict=True)
    for name, value in variables.items():
        if value is None:
            environment.pop(name, None)
        else:
            environment[name] = value
