"""Where each replica listens, and how TensorFlow hears of it in TF_CONFIG.

A launcher tells every replica of a job the same: all addresses. The replica itself adds its own
place among them, so that what a launcher hands out can be one object for all.
"""

import json
from collections.abc import Mapping, MutableMapping

from aerotrain.contract.job import CLUSTERED, Job, ReplicaName, Role

Addresses = Mapping[ReplicaName, str]

#: The addresses of replicas by role, in the order of their indices; empty where one is alone.
Cluster = Mapping[str, list[str]]


def cluster_of(job: Job, addresses: Addresses) -> Cluster:
    """Who is to be found where, of the ``host:port`` of every replica of the job.

    The evaluator is no member of the cluster that it is told about, as TensorFlow's estimators
    defined it:
    https://www.tensorflow.org/api_docs/python/tf/distribute/cluster_resolver/TFConfigClusterResolver
    """
    cluster: dict[str, list[str]] = {}
    if job.count(Role.WORKER) or job.count(Role.INPUT):
        for name in job.names():
            if name.role is not Role.EVALUATOR:
                cluster.setdefault(name.role.value, []).append(addresses[name])
    return cluster


def tf_config(cluster: Cluster, replica: ReplicaName) -> str | None:
    """The TF_CONFIG of one replica, or None where it is told of no cluster."""
    members = {role.value: cluster[role] for role in CLUSTERED if role in cluster}
    if Role.WORKER not in members or replica.role in (Role.INPUT, Role.DISPATCHER):
        return None
    task = {"type": replica.role.value, "index": replica.index}
    return json.dumps({"cluster": members, "task": task}, sort_keys=True)


def replica_environment(
    job: Job, replica: ReplicaName, addresses: Addresses, attempt: str, generation: int = 0
) -> dict[str, str]:
    """Every variable that tells a replica who it is; a launcher adds credentials to them.

    ``generation`` counts how often this replica came back in its set. A launcher may add
    AEROTRAIN_HEARTBEAT, the file that a replica touches as long as it is alive; by default it is
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
    """Which replica the variables of a launcher describe."""
    return ReplicaName(Role(environment["AEROTRAIN_ROLE"]), int(environment["AEROTRAIN_INDEX"]))


def set_tf_config(environment: MutableMapping[str, str]) -> None:
    """Set TF_CONFIG as the variables of a launcher say, whatever was there before.

    It has to be there before TensorFlow builds a strategy.
    """
    config = tf_config(json.loads(environment["AEROTRAIN_CLUSTER"]), replica_of(environment))
    if config is None:
        environment.pop("TF_CONFIG", None)
    else:
        environment["TF_CONFIG"] = config
