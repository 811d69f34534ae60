"""Replicas that come back as pods: against a stand-in API and, marked ``cluster``, a real one."""

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from aerotrain.contract.job import ReplicaName, Role
from aerotrain.contract.ledger import What
from aerotrain.contract.status import State
from aerotrain_airflow.launchers.kubernetes import KubernetesLauncher
from aerotrain_airflow.pods import renewal
from aerotrain_airflow.pods.address import Address
from aerotrain_airflow.pods.plan import PodSettings, plan_pods
from aerotrain_airflow.pods.renewal import generation_of, pod_again
from kubernetes_double import KubernetesDouble, statuses
from kubernetes_worlds import ALONE, CONN_ID, World, connection, described, make_namespace, person
from test_kubernetes_launcher import eventually

GANG = [{"role": "chief"}, {"role": "worker", "count": 2}]


@pytest.mark.parametrize(
    ("strategy", "replicas", "victim", "back"),
    [
        ("parameter_server", None, "worker-1", {"worker-1"}),
        ("parameter_server", None, "ps-0", {"chief", "ps-0"}),
        ("multi_worker_mirrored", GANG, "worker-0", {"chief", "worker-0", "worker-1"}),
    ],
)
def test_who_is_deleted_comes_back_with_those_it_needs_and_no_others(
    world: World, strategy: str, replicas: Any, victim: str, back: set[str]
) -> None:
    launcher = world.launcher()
    does = {"chief": "await_return", "worker": "report", "ps": "report"}
    job = world.job(
        strategy=strategy,
        replicas=replicas,
        arguments={**does, "awaited": dict.fromkeys(back, 1)},
    )
    address = launcher.start(launcher.plan(job, "try-1"))
    lines: list[str] = []
    with ThreadPoolExecutor(1) as thread:
        end = thread.submit(
            launcher.watch, address, lambda line: lines.append(str(line)), until=None
        )
        eventually(lambda: len([each for each in lines if "hello" in each]) == len(world.pods()))
        before = {name: pod.metadata.uid for name, pod in world.pods().items()}
        world.core.delete_namespaced_pod(f"job-{victim}", world.namespace)
        assert end.result(120).state is State.SUCCEEDED, lines
    after = {name: pod.metadata.uid for name, pod in world.pods().items()}
    assert {name.removeprefix("job-") for name in after if after[name] != before[name]} == back
    ledger = launcher.ledger(address)
    assert {each.replica for each in ledger if each.event is What.RESTART} == back
    launcher.stop(address)


class Imagined:
    """A set of one imagined pod in an API of this test's own."""

    def __init__(self, double: KubernetesDouble) -> None:
        self.double = double
        self.namespace = make_namespace(person(Path(double.kubeconfig)), {})
        self.launcher = KubernetesLauncher(
            PodSettings(namespace=self.namespace, image="imagined:1"), CONN_ID, "try-1"
        )
        double.imagine("job-chief", statuses.running(), self.namespace)
        self.address = self.launcher.start(
            self.launcher.plan(described("s3://bucket", replicas=ALONE), "try-1")
        )
        self.thread = ThreadPoolExecutor(2)
        self.end = self.follow()

    def follow(self) -> Any:
        return self.thread.submit(self.launcher.watch, self.address, lambda line: None, until=None)

    def become(self, state: Any) -> None:
        self.double.become("job-chief", state, self.namespace)

    def pod(self) -> dict[str, Any]:
        pods = self.double.all("pods", self.namespace)
        return pods[0] if pods else {"metadata": {}}

    def until_life(self, generation: int) -> None:
        self.double.wait_for(
            lambda: self.pod()["metadata"] and generation_of(self.pod()) == generation,
            f"life {generation}",
        )


@pytest.fixture
def imagined(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    with KubernetesDouble(tmp_path, token="first") as double:
        monkeypatch.setenv(f"AIRFLOW_CONN_{CONN_ID.upper()}", connection(Path(double.kubeconfig)))
        yield Imagined(double)


@pytest.mark.process
def test_a_budget_of_pods_ends_where_it_says(imagined: Imagined) -> None:
    for life in (1, 2, 3):
        imagined.become(statuses.exited(130 + life))
        imagined.until_life(life)
    imagined.become(statuses.exited(139))
    ended = imagined.end.result(30)
    assert ended.state is State.LOST
    assert "it came back 3 times, and restarts.crashes is 3" in ended.reason


@pytest.mark.process
def test_a_follower_that_breaks_in_the_middle_leaves_the_rest_to_the_next(
    imagined: Imagined,
) -> None:
    imagined.double.fail(403, verb="create", resource="pods", message="not now")
    imagined.become(statuses.exited(139))
    assert imagined.end.exception(30) is not None
    assert imagined.pod() == {"metadata": {}}
    end = imagined.follow()
    imagined.until_life(1)
    imagined.become(statuses.exited(0))
    assert end.result(30).state is State.SUCCEEDED
    entries = imagined.launcher.ledger(imagined.address)
    assert [each.event for each in entries] == [What.START, What.DETECT, What.RESTART]


@pytest.mark.process
def test_of_two_followers_one_decides(imagined: Imagined) -> None:
    imagined.double.wait_for(lambda: imagined.double.watching, "a watch")
    other = imagined.follow()
    imagined.double.wait_for(lambda: imagined.double.watching > 1, "another watch")
    for life in (1, 2):
        imagined.become(statuses.exited(138 + life))
        imagined.until_life(life)
    imagined.become(statuses.exited(0))
    assert imagined.end.result(30).state is State.SUCCEEDED
    assert other.result(30).state is State.SUCCEEDED
    entries = imagined.launcher.ledger(imagined.address)
    assert [each.generation for each in entries if each.event is What.RESTART] == [1, 2]


@pytest.mark.process
def test_a_pod_on_a_silent_node_is_replaced_and_not_waited_for(
    imagined: Imagined, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(renewal, "GOING", 1.0)
    imagined.double.hold("job-chief", imagined.namespace)
    imagined.double.delete("pods", "job-chief", imagined.namespace)
    imagined.until_life(1)
    imagined.become(statuses.exited(0))
    assert imagined.end.result(30).state is State.SUCCEEDED


def test_a_pod_comes_back_with_its_name_elsewhere_and_with_more_memory() -> None:
    resources = {"memory": "3Gi"}
    replicas = [
        {"role": "chief"},
        {"role": "worker", "count": 2, "resources": resources},
        {"role": "ps"},
    ]
    job = described("s3://bucket", replicas=replicas, code="s3://bucket/code")
    plan = plan_pods(job, "try-1", PodSettings(image="image:1"))
    pods = {pod["metadata"]["name"]: pod for pod in plan.others if pod["kind"] == "Pod"}
    of = Address("default", "job", "try-1")

    def made(**how: Any) -> dict[str, Any]:
        return pod_again(pods["job-worker-0"], of, ReplicaName(Role.WORKER, 1), 2, **how)

    pod = made(not_on="node-3", memory_losses=1)
    assert generation_of(pod) == 2
    container = pod["spec"]["containers"][0]
    assert container["resources"]["limits"]["memory"] == "4608Mi"
    environment = {each["name"]: each.get("value") for each in container["env"]}
    assert environment["AEROTRAIN_INDEX"] == "1"
    assert environment["AEROTRAIN_GENERATION"] == "2"
    [avoided] = pod["spec"]["affinity"]["nodeAffinity"][
        "preferredDuringSchedulingIgnoredDuringExecution"
    ]
    assert avoided["preference"]["matchExpressions"][0]["values"] == ["node-3"]
    plain, first = made(), pods["job-worker-1"]
    assert plain["spec"]["hostname"] == first["spec"]["hostname"]
    assert plain["metadata"]["name"] == first["metadata"]["name"]
    assert plain["metadata"]["labels"] == first["metadata"]["labels"]
    assert (
        plain["spec"]["containers"][0]["resources"] == (first["spec"]["containers"][0]["resources"])
    )
