"""Restarts of pods: against a double of the API and, marked ``cluster``, a real one."""

import copy
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from aerotrain.contract.event_log import EventType
from aerotrain.contract.job import ReplicaName, Role
from aerotrain.contract.status import State
from aerotrain_airflow.backends.kubernetes import lifecycle
from aerotrain_airflow.backends.kubernetes.cluster import ApiError
from aerotrain_airflow.backends.kubernetes.identity import restarts_of
from aerotrain_airflow.backends.kubernetes.plan import PodSettings, plan_pods
from aerotrain_airflow.backends.kubernetes.pod import replica_pod
from support.imagined_groups import ImaginedGroup
from support.kubernetes_double import KubernetesDouble, statuses
from support.kubernetes_worlds import World, described
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
def test_a_deleted_replica_is_restarted_with_those_it_needs_and_no_others(
    world: World, strategy: str, replicas: Any, victim: str, back: set[str]
) -> None:
    launcher = world.launcher()
    does = {"chief": "await_return", "worker": "report", "ps": "report"}
    job = world.job(
        strategy=strategy,
        replicas=replicas,
        arguments={**does, "awaited": dict.fromkeys(back, 1)},
    )
    handle = launcher.start(launcher.plan(job, "try-1"))
    lines: list[str] = []
    with ThreadPoolExecutor(1) as thread:
        end = thread.submit(
            launcher.watch, handle, lambda line: lines.append(str(line)), until=None
        )
        eventually(lambda: len([each for each in lines if "hello" in each]) == len(world.pods()))
        before = {name: pod.metadata.uid for name, pod in world.pods().items()}
        world.core.delete_namespaced_pod(f"job-{victim}", world.namespace)
        assert end.result(120).state is State.SUCCEEDED, lines
    after = {name: pod.metadata.uid for name, pod in world.pods().items()}
    assert {name.removeprefix("job-") for name in after if after[name] != before[name]} == back
    events = launcher.events(handle)
    assert {each.replica for each in events if each.event is EventType.RESTART} == back
    launcher.stop(handle)


@pytest.fixture
def imagined(own: KubernetesDouble) -> ImaginedGroup:
    return ImaginedGroup(own).followed()


@pytest.mark.process
def test_pods_are_restarted_until_their_budget_is_used_up(imagined: ImaginedGroup) -> None:
    for life in (1, 2, 3):
        imagined.become(statuses.exited(130 + life))
        imagined.until_restarted(life)
    imagined.become(statuses.exited(139))
    ended = imagined.end()
    assert ended.state is State.LOST
    assert "it was restarted 3 times, and restarts.crashes is 3" in ended.reason


@pytest.mark.process
def test_a_recovery_that_one_follower_began_is_finished_by_the_next(
    imagined: ImaginedGroup,
) -> None:
    imagined.double.fail(403, verb="create", resource="pods", message="not now")
    imagined.become(statuses.exited(139))
    with pytest.raises(ApiError):
        imagined.end()
    assert imagined.pod() == {"metadata": {}}
    end = imagined.follow()
    imagined.until_restarted(1)
    imagined.become(statuses.exited(0))
    assert end.result(30).state is State.SUCCEEDED
    entries = imagined.launcher.events(imagined.handle)
    assert [each.event for each in entries] == [
        EventType.START,
        EventType.DETECT,
        EventType.RESTART,
    ]


@pytest.mark.process
def test_only_one_of_two_followers_restarts_a_replica(imagined: ImaginedGroup) -> None:
    other = imagined.follow()
    imagined.double.wait_for(lambda: imagined.double.watching > 1, "another watch")
    for life in (1, 2):
        imagined.become(statuses.exited(138 + life))
        imagined.until_restarted(life)
    imagined.become(statuses.exited(0))
    assert imagined.end().state is State.SUCCEEDED
    assert other.result(30).state is State.SUCCEEDED
    entries = imagined.launcher.events(imagined.handle)
    assert [each.restarts for each in entries if each.event is EventType.RESTART] == [1, 2]


@pytest.mark.process
def test_a_pod_on_an_unresponsive_node_is_replaced_without_waiting(
    imagined: ImaginedGroup, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(lifecycle, "DELETED_WITHIN", 1.0)
    imagined.double.hold("job-chief", imagined.namespace)
    imagined.double.delete("pods", "job-chief", imagined.namespace)
    imagined.until_restarted(1)
    imagined.become(statuses.exited(0))
    assert imagined.end().state is State.SUCCEEDED


def test_a_pod_restarts_under_its_name_on_another_node_with_more_memory() -> None:
    resources = {"memory": "3Gi"}
    replicas = [
        {"role": "chief"},
        {"role": "worker", "count": 2, "resources": resources},
        {"role": "ps"},
    ]
    job = described("s3://bucket", replicas=replicas, code="s3://bucket/code")
    plan = plan_pods(job, "try-1", PodSettings(image="image:1"))
    pods = {pod["metadata"]["name"]: pod for pod in plan.others if pod["kind"] == "Pod"}

    def made(**how: Any) -> dict[str, Any]:
        template = copy.deepcopy(pods["job-worker-0"])
        return replica_pod(template, "job", ReplicaName(Role.WORKER, 1), restarts=2, **how)

    pod = made(avoid="node-3", memory=1.5)
    assert restarts_of(pod) == 2
    container = pod["spec"]["containers"][0]
    assert container["resources"]["limits"]["memory"] == "4608Mi"
    environment = {each["name"]: each.get("value") for each in container["env"]}
    assert environment["AEROTRAIN_INDEX"] == "1"
    assert environment["AEROTRAIN_RESTARTS"] == "2"
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
