"""The addresses of a job's replicas, and the TF_CONFIG that TensorFlow reads.

A launcher gives every replica of a job the same addresses. The replica adds its own role and index
to them, so that a launcher can share one object between all replicas.
"""

import json
from collections.abc import Mapping, MutableMapping

from aerotrain.contract.job import CLUSTERED, Job, ReplicaName, Role

Addresses = Mapping[ReplicaName, str]

#: The addresses of replicas by role, in the order of their indices. Empty if a replica runs alone.
Cluster = Mapping[str, list[str]]


def cluster_of(job: Job, addresses: Addresses) -> Cluster:
    """The cluster of a job, from the ``host:port`` of each replica.

    The evaluator receives the cluster but is not a member of it, as in TensorFlow's estimators:
    https://www.tensorflow.org/api_docs/python/tf/distribute/cluster_resolver/TFConfigClusterResolver
    """
    cluster: dict[str, list[str]] = {}
    if job.count(Role.WORKER) or job.count(Role.INPUT):
        for name in job.names():
            if name.role is not Role.EVALUATOR:
                cluster.setdefault(name.role.value, []).append(addresses[name])
    return cluster


def tf_config(cluster: Cluster, replica: ReplicaName) -> str | None:
    """The TF_CONFIG of one replica, or None if the replica is not part of a TensorFlow cluster."""
    members = {role.value: cluster[role] for role in CLUSTERED if role in cluster}
    if Role.WORKER not in members or replica.role in (Role.INPUT, Role.DISPATCHER):
        return None
    task = {"type": replica.role.value, "index": replica.index}
    return json.dumps({"cluster": members, "task": task}, sort_keys=True)


def replica_environment(
    job: Job, replica: ReplicaName, addresses: Addresses, attempt: str, generation: int = 0
) -> dict[str, str]:
    """The environment variables that describe a replica; a launcher adds credentials to them.

    ``generation`` is the replica's restart count in its replica group. A launcher may add
    AEROTRAIN_HEARTBEAT, the file that a replica touches while it is alive; the default is
    ``heartbeat`` in its working directory.
    """
    return {
        **job.replica(replica.role).environment,
        "AEROTRAIN_JOB": job.to_json(),
        "AEROTRAIN_CLUSTER": json.dumps(cluster_of(job, addresses), sort_keys=True),
        "AEROTRAIN_ROLE": replica.role.value,
        "AEROTRAIN_INDEX": str(replica.index),
        "AEROTRAIN_ATTEMPT": attempt,
        "AEROTRAIN_GENERATION": str(generation),
    }


def replica_of(environment: Mapping[str, str]) -> ReplicaName:
    """The replica that a launcher's variables describe."""
    return ReplicaName(Role(environment["AEROTRAIN_ROLE"]), int(environment["AEROTRAIN_INDEX"]))


def set_tf_config(environment: MutableMapping[str, str]) -> None:
    """Set TF_CONFIG from a launcher's variables, and replace an existing value.

    Call this before TensorFlow builds a strategy.
    """
    config = tf_config(json.loads(environment["AEROTRAIN_CLUSTER"]), replica_of(environment))
    if config is None:
        environment.pop("TF_CONFIG", None)
    else:
        environment["TF_CONFIG"] = config
