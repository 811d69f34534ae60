"""A test double of a Kubernetes cluster: its API over real HTTP, its pods real local processes.

::

    with KubernetesDouble() as double:
        ...                                        # use double.kubeconfig or double.url
        double.pod("job-chief")                    # its manifest now, or None
        double.requests                            # every request so far
        double.fail(429, verb="list", times=3)     # the next three lists
        double.imagine("job-worker-1", statuses.image_pull_back_off())
        double.become("job-worker-0", statuses.out_of_memory())

Why not kmock (0.8), the closest package on PyPI: its emulator keeps objects and streams their
changes, but gives them no resourceVersion, no uid and no creation time. It ignores selectors,
limits and timeouts, begins every watch with all existing objects, has no error 410, removes every
pod at once, and searches all objects for each request, so that it could not list a job of 500
workers in milliseconds. Only its HTTP server could have been used, which is aiohttp's, as here.

Why not kwok: it needs a real API server and etcd, neither of which PyPI has, and runs no processes.

Responses, the order of a pod's states, its events and its log were compared with those of a real
Kubernetes 1.36.2.

What is not imitated: TLS; admission by webhooks and the pod security standard; server-side apply,
JSON patches, and strategic merge of lists (a merge patch replaces them); consistent continuation of
a list; restart policies other than Never, probes, side-cars that are init containers; limits of
memory and CPU (script ``statuses.out_of_memory()``); networks and their policies (a name in
AEROTRAIN_CLUSTER becomes a port of loopback); images. A container's process is not process 1 of a
namespace: SIGTERM ends it even where it has no handler for it.
"""

from support.kubernetes_double import statuses
from support.kubernetes_double.double import KubernetesDouble
from support.kubernetes_double.faults import Fault, Request
from support.kubernetes_double.nodes import Tempo

__all__ = ["Fault", "KubernetesDouble", "Request", "Tempo", "statuses"]
