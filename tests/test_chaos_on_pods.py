"""The recovery matrix on a real cluster: pods of a training are deleted and evicted."""

from collections.abc import Iterator
from pathlib import Path

import pytest

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
