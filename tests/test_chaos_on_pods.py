"""Trainings on a real cluster: pods are deleted and evicted, and groups change their size."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import pytest
from benchmarks.fault_injection import Training

from aerotrain.contract.event_log import EventType
from aerotrain.launch.wanted import want
from aerotrain.store import open_store
from chaos import elastic
from chaos.faults import SERVED
from chaos.pods import POD_FAULTS, PodFault, Pods, on_cluster
from support.kubernetes_worlds import given

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(900)]


@pytest.fixture(scope="module")
def pods(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Pods]:
    folder, kubeconfig = tmp_path_factory.mktemp("chaos"), Path(given("KUBECONFIG"))
    with on_cluster(folder, kubeconfig, given("AEROTRAIN_TEST_IMAGE")) as pods:
        yield pods


@pytest.mark.parametrize("fault", POD_FAULTS, ids=lambda fault: f"{fault.strategy}: {fault.name}")
def test_exactly_the_promised_pods_restart_and_no_object_is_left(
    pods: Pods, fault: PodFault
) -> None:
    judged = pods.judge(fault, after=5)
    assert not judged.wrong, judged.tail


@pytest.fixture(scope="module")
def trainings(pods: Pods, tmp_path_factory: pytest.TempPathFactory) -> elastic.Trainings:
    testbed = pods.testbed
    return elastic.Trainings(tmp_path_factory.mktemp("keyed"), testbed.store, testbed.launcher)


@contextmanager
def quota(pods: Pods, room: int) -> Iterator[None]:
    """A scope with room for so many pods."""
    manifest = {"metadata": {"name": "few"}, "spec": {"hard": {"pods": str(room)}}}
    pods.core.create_namespaced_resource_quota(pods.namespace, manifest)
    try:
        yield
    finally:
        pods.core.delete_namespaced_resource_quota("few", pods.namespace)


@contextmanager
def notice(pods: Pods, node: str) -> Iterator[None]:
    """A scope in which a node has the taint of a termination handler, as that sets it."""
    key = "aws-node-termination-handler/spot-itn"
    taints = pods.core.read_node(node).spec.taints or []
    leaving = [*taints, {"key": key, "value": "an-event", "effect": "NoSchedule"}]
    pods.core.patch_node(node, {"spec": {"taints": leaving}})
    try:
        yield
    finally:
        pods.core.patch_node(node, {"spec": {"taints": taints}})


def nodes(pods: Pods, training: Training, role: str = "") -> dict[str, str]:
    """The nodes of the replicas that run, by the names of their pods."""
    label = f"aerotrain/job={training.job.name}" + (f",aerotrain/role={role}" if role else "")
    found = pods.core.list_namespaced_pod(pods.namespace, label_selector=label).items
    return {
        each.metadata.name: each.spec.node_name
        for each in found
        if each.status.phase == "Running" and not each.metadata.deletion_timestamp
    }


def until_trained(training: Training, epochs: int = 2) -> None:
    """Wait until so many more epochs have ended."""
    known = len(elastic.counts(training))
    assert training.until(lambda: len(elastic.counts(training)) >= known + epochs), training.tail()


@pytest.mark.parametrize("kind", elastic.KINDS, ids=lambda kind: kind.name)
def test_a_training_takes_the_room_of_a_quota_leaves_nodes_and_is_suspended(
    pods: Pods, trainings: elastic.Trainings, kind: elastic.Kind
) -> None:
    paused = {**kind.arguments, "hparams": {"pause": 2.0}}
    kind = replace(kind, epochs=18, arguments=paused)
    others = 2 if kind.strategy == SERVED else 1  # pods that are no workers

    def workers() -> dict[str, str]:
        return nodes(pods, training, "worker")

    with (
        quota(pods, others + 2),
        trainings.started(kind, f"room-{kind.name}", 4, spot=True) as training,
    ):
        until_trained(training)
        assert len(workers()) == 2
        room = {"spec": {"hard": {"pods": str(others + 3)}}}
        pods.core.patch_namespaced_resource_quota("few", pods.namespace, room)
        training.until(lambda: len(workers()) == 3)
        until_trained(training)
        with notice(pods, next(iter(workers().values()))):
            training.until(lambda: not workers())
        training.until(lambda: len(workers()) == 3)
        until_trained(training)
        store = open_store(training.job.prefix)
        want(store, suspended=True)
        training.until(lambda: not nodes(pods, training))
        want(store, suspended=False)
        wrong = elastic.what_is_wrong(kind, training)
        detected = {each.kind for each in training.events() if each.event is EventType.DETECT}
        said = "\n".join(line for _, line in training.lines)
    assert (wrong, detected, pods.left_behind(training)) == ([], {"preempted"}, []), said
