"""Where each replica listens, and the TF_CONFIG that tells it about the others."""

import json
from collections.abc import Mapping

from aerotrain.contract.job import Job, ReplicaName, Role

Addresses = Mapping[ReplicaName, str]


def tf_config(job: Job, replica: ReplicaName, addresses: Addresses) -> str | None:
    """The TF_CONFIG of one replica, or None where the job has no cluster.

    ``addresses`` holds ``host:port`` of every replica. The evaluator is no member of the
    cluster that it is told about, as TensorFlow's estimators defined it:
    https://www.tensorflow.org/api_docs/python/tf/distribute/cluster_resolver/TFConfigClusterResolver
    """
    if not job.count(Role.WORKER):
        return None
    cluster: dict[str, list[str]] = {}
    for name in job.names():
        if name.role is not Role.EVALUATOR:
            cluster.setdefault(name.role, []).append(addresses[name])
    return json.dumps(
        {"cluster": cluster, "task": {"type": replica.role, "index": replica.index}},
        sort_keys=True,
    )


def replica_environment(
    job: Job, replica: ReplicaName, addresses: Addresses, attempt: str
) -> dict[str, str]:
    """Every variable that tells a replica who it is; a launcher adds credentials to them."""
    environment = dict(job.replica(replica.role).environment)
    environment["AEROTRAIN_JOB"] = job.to_json()
    environment["AEROTRAIN_ROLE"] = replica.role.value
    environment["AEROTRAIN_INDEX"] = str(replica.index)
    environment["AEROTRAIN_ATTEMPT"] = attempt
    config = tf_config(job, replica, addresses)
    if config is not None:
        environment["TF_CONFIG"] = config
    return environment
