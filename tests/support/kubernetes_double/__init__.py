"""A test double of a Kubernetes cluster: its API over real HTTP, its pods real local processes.

::

    with KubernetesDouble() as double:
        ...                                        # use double.kubeconfig or double.url
        double.find("pods", "job-chief")                    # its manifest now, or None
        double.requests                            # every request so far
        double.fail(429, verb="list", times=3)     # the next three lists
        double.imagine("job-worker-1", statuses.unschedulable())
        double.become("job-worker-0", statuses.out_of_memory())

It has what the launcher asks of a cluster, and what its tests do to one. Responses, the order of a
pod's states and its log were compared with those of a real Kubernetes 1.36.2. All else is shown on
a real cluster, by tests marked ``cluster``: admission, roles, networks and their policies (here a
name in AEROTRAIN_CLUSTER becomes a port of loopback), images, probes, side-cars, deadlines, limits
of memory and CPU. A container's process is not process 1 of a namespace: SIGTERM ends it even where
it has no handler for it.
"""

from support.kubernetes_double import statuses
from support.kubernetes_double.double import KubernetesDouble

__all__ = ["KubernetesDouble", "statuses"]
