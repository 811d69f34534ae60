"""How many seconds the parts of the cluster take: in the order of a real one's, but shorter."""

from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True)
class Tempo:
    """Seconds, measured on a real Kubernetes 1.36 and divided by about five."""

    schedule: float = 0.01  # until the scheduler has found a node
    create: float = 0.03  # until the kubelet has made the containers
    notice: float = 0.05  # from a container's end to `terminated` in its status
    phase: float = 0.2  # from there to the pod's phase
    collect: float = 0.05  # from the end of an owner to the deletion of its dependants
    removal: float = 0.05  # from the end of a deleted pod's containers to the end of the object
    bookmark: float = 10.0  # from one bookmark to the next; a real one: 60
