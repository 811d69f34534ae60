"""Faults of pods, on the cluster that KUBECONFIG names.

Nothing within a pod may kill or stop its first process. So the fault is a deletion of the pod, with
or without grace period, or its eviction.
"""

import os
import re
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import kubernetes.client
from benchmarks.fault_injection import Training, inject
from benchmarks.testbed import Testbed

from aerotrain.contract.status import State
from aerotrain.launch.launcher import Launcher
from aerotrain.store import open_store
from aerotrain_airflow.kubernetes.backend import KubernetesBackend
from aerotrain_airflow.kubernetes.identity import JOB_LABEL, Handle
from aerotrain_airflow.kubernetes.plan import PodSettings
from chaos.faults import ALONE, BOTH, CHIEF, EPOCHS, GANG, SERVED
from chaos.trials import Judged, what_is_wrong
from devtools.s3_server import s3_server
from support.kubernetes_worlds import (
    CONN_ID,
    SECRET,
    connection,
    forwarded_to_pods,
    make_namespace,
    person,
)

_BUCKET = "chaos"

#: Timeout in seconds for the deletion of all objects of a replica group.
_GONE = 30.0


@dataclass(frozen=True)
class Pods:
    """A namespace with a store, and a client that injects faults there."""

    core: kubernetes.client.CoreV1Api
    namespace: str
    testbed: Testbed

    def lacks(self, _: "PodFault") -> str:
        return ""

    def judge(self, fault: "PodFault", after: int) -> Judged:
        training = self.testbed.train(fault.strategy, epochs=EPOCHS[fault.strategy])
        outcome = inject(training, partial(fault.harm, self), lines=after, left=self.left_behind)
        wrong = what_is_wrong(fault, outcome)
        return Judged(outcome, wrong, training.tail() if wrong else "")

    def delete(self, replica: str, seconds: int, training: Training) -> None:
        """Delete a pod with a grace period of ``seconds``."""
        self.core.delete_namespaced_pod(
            self._pod(replica, training), self.namespace, grace_period_seconds=seconds
        )

    def evict(self, replica: str, training: Training) -> None:
        """Evict a pod, as the drain of a node does."""
        name = self._pod(replica, training)
        eviction = {"apiVersion": "policy/v1", "kind": "Eviction", "metadata": {"name": name}}
        self.core.create_namespaced_pod_eviction(name, self.namespace, eviction)

    def left_behind(self, training: Training) -> list[str]:
        """The objects of a stopped replica group that still exist after the timeout."""
        until = time.monotonic() + _GONE
        while (left := self._objects(training)) and time.monotonic() < until:
            time.sleep(0.5)
        return left

    def _objects(self, training: Training) -> list[str]:
        label = f"{JOB_LABEL}={training.job.name}"
        kinds: dict[str, Callable[..., object]] = {
            "pod": self.core.list_namespaced_pod,
            "service": self.core.list_namespaced_service,
            "configmap": self.core.list_namespaced_config_map,
        }
        return [
            f"{kind} {each.metadata.name}"
            for kind, ask in kinds.items()
            for each in ask(self.namespace, label_selector=label).items  # type: ignore[attr-defined]
        ]

    def _pod(self, replica: str, training: Training) -> str:
        """The pod that a replica runs in, whatever its restart count is."""
        name = f"{Handle.parse(training.handle).name}-{replica}"
        pods = self.core.list_namespaced_pod(
            self.namespace, label_selector=f"{JOB_LABEL}={training.job.name}"
        ).items
        names: list[str] = [each.metadata.name for each in pods]
        return next(each for each in names if re.fullmatch(rf"{name}(-r\d+)?", each))


@dataclass(frozen=True)
class PodFault:
    """A fault of a pod of a training, and the replicas that restart after it."""

    name: str
    strategy: str
    harm: Callable[[Pods, Training], None]
    back: frozenset[str]
    ends: State = State.SUCCEEDED


def _deleted(replica: str, seconds: int) -> Callable[[Pods, Training], None]:
    return lambda pods, training: pods.delete(replica, seconds, training)


def _evicted(replica: str) -> Callable[[Pods, Training], None]:
    return lambda pods, training: pods.evict(replica, training)


POD_FAULTS: tuple[PodFault, ...] = (
    PodFault("kill a worker", SERVED, _deleted("worker-1", 0), frozenset({"worker-1"})),
    PodFault("kill the ps", SERVED, _deleted("ps-0", 0), frozenset({"chief", "ps-0"})),
    PodFault("kill the chief", SERVED, _deleted("chief", 0), CHIEF),
    PodFault("evict a worker", SERVED, _evicted("worker-0"), frozenset({"worker-0"})),
    PodFault("kill a worker", GANG, _deleted("worker-0", 0), BOTH),
    PodFault("delete a worker", GANG, _deleted("worker-0", 30), BOTH),
    PodFault("kill the pod", ALONE, _deleted("chief", 0), CHIEF),
    PodFault("delete the pod", ALONE, _deleted("chief", 30), CHIEF),
    PodFault("evict the pod", ALONE, _evicted("chief"), CHIEF),
)


@contextmanager
def on_cluster(folder: Path, kubeconfig: Path, image: str) -> Iterator[Pods]:
    """A namespace on the cluster, with a store on this machine."""
    with s3_server(folder / "s3") as server, forwarded_to_pods(server) as environment:
        server.make_bucket(_BUCKET)
        os.environ |= server.environment  # this process reads the store too
        yield from _namespace(folder, kubeconfig, image, environment)


def _namespace(
    folder: Path, kubeconfig: Path, image: str, environment: dict[str, str]
) -> Iterator[Pods]:
    os.environ[f"AIRFLOW_CONN_{CONN_ID.upper()}"] = connection(kubeconfig)
    core = person(kubeconfig)
    namespace = make_namespace(core, environment)
    settings = PodSettings(namespace=namespace, image=image, store_secret=SECRET)
    backend = KubernetesBackend(settings, CONN_ID, "benchmarks")
    launcher = Launcher(backend, open_store=open_store)
    try:
        testbed = Testbed(folder, store=f"s3://{_BUCKET}/digits", launcher=launcher)
        yield Pods(core, namespace, testbed)
    finally:
        core.delete_namespace(namespace)
