"""Restarts of pods: against a double of the API and, marked ``cluster``, a real one."""

import asyncio
import copy
import logging
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from aerotrain.contract.environment import Variable
from aerotrain.contract.errors import FinalError
from aerotrain.contract.event_log import EventType
from aerotrain.contract.layout import SIZE
from aerotrain.contract.replicas import ReplicaName, Role
from aerotrain.contract.status import State
from aerotrain.launch import driver, size, wanted
from aerotrain.launch.size import WantedSize
from aerotrain_airflow.kubernetes import backend as backend_module
from aerotrain_airflow.kubernetes import group as group_module
from aerotrain_airflow.kubernetes import lifecycle, trigger
from aerotrain_airflow.kubernetes.identity import restarts_of
from aerotrain_airflow.kubernetes.plan import PodSettings, plan_pods
from aerotrain_airflow.kubernetes.pod import GRACE, replica_pod
from aerotrain_airflow.kubernetes.spot import OUT_OF_SERVICE
from support.imagined_groups import ImaginedGroup
from support.kubernetes_double import KubernetesDouble, statuses
from support.kubernetes_worlds import CONN_ID, World, connection, described, eventually

GANG = [{"role": "chief"}, {"role": "worker", "count": 2}]
SERVED = [*GANG, {"role": "ps"}]


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
        before = world.pods().keys()
        world.core.delete_namespaced_pod(f"job-{victim}", world.namespace)
        assert end.result(120).state is State.SUCCEEDED, lines
    assert world.pods().keys() - before == {f"job-{name}-r1" for name in back}
    events = launcher.events(handle)
    assert {each.replica for each in events if each.event is EventType.RESTART} == back
    launcher.stop(handle)


@pytest.fixture
def imagined(own: KubernetesDouble) -> ImaginedGroup:
    return ImaginedGroup(own).followed()


#: A node of its own for the worker.
SPOT_NODE = "spot-node"


def _on_spot_node(pod: dict[str, Any]) -> None:
    statuses.running()(pod)
    pod["spec"]["nodeName"] = SPOT_NODE


def _taint(double: KubernetesDouble, key: str) -> None:
    taints = [{"key": each, "effect": "NoSchedule"} for each in ("mine", key)]
    double.edit("nodes", SPOT_NODE, lambda node: node["spec"].update(taints=taints))


@pytest.fixture
def on_spot(own: KubernetesDouble) -> ImaginedGroup:
    own.create({"kind": "Node", "metadata": {"name": SPOT_NODE}, "spec": {}})
    replicas = [{"role": "chief"}, {"role": "worker", "spot": True}, {"role": "ps"}]
    states = {"worker-0": _on_spot_node}
    return ImaginedGroup(own, states, strategy="parameter_server", replicas=replicas)


@pytest.mark.process
@pytest.mark.parametrize(
    ("key", "kind"),
    [("aws-node-termination-handler/spot-itn", "preempted"), (OUT_OF_SERVICE, "node")],
)
def test_a_pod_whose_node_is_about_to_leave_saves_at_once_and_restarts(
    on_spot: ImaginedGroup, key: str, kind: str, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    double = on_spot.followed().double
    double.wait_for(lambda: double.watching == 2, "the watches of pods and nodes")
    if key == OUT_OF_SERVICE:
        double.hold("job-worker-0", on_spot.namespace)  # its end is never reported
    _taint(double, key)
    on_spot.until_restarted(1, "worker-0")
    on_spot.become(statuses.exited(0))
    assert on_spot.end().state is State.SUCCEEDED
    said = f"worker-0 is on the node {SPOT_NODE}, which is about to leave (taint {key})"
    assert caplog.text.count(said) == 1
    events = on_spot.launcher.events(on_spot.handle)
    [failure] = [each for each in events if each.event is EventType.DETECT]
    assert (failure.replica, failure.kind, failure.node) == ("worker-0", kind, SPOT_NODE)
    assert kind == "node" or f"and its node has the taint {key}" in failure.because


@pytest.mark.process
def test_without_the_permission_to_read_nodes_a_group_goes_on_as_before(
    on_spot: ImaginedGroup,
) -> None:
    double = on_spot.double
    double.deny("watch", "nodes")
    _taint(double, OUT_OF_SERVICE)
    on_spot.followed()

    def asked() -> list[str]:
        return [f"{each.verb} {each.resource}" for each in double.requests]

    question = "create selfsubjectaccessreviews"
    double.wait_for(lambda: asked().count(question) == 2, "the questions")
    on_spot.become(statuses.exited(0))
    assert on_spot.end().state is State.SUCCEEDED
    assert not {"list nodes", "watch nodes", "delete pods"} & set(asked())


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
    ended = imagined.end()
    assert (ended.state, "the cluster does not allow it" in ended.reason) == (State.FAILED, True)
    end = imagined.follow()
    imagined.until_restarted(1)
    imagined.become(statuses.exited(0))
    assert end.result(30).state is State.SUCCEEDED
    entries = imagined.launcher.events(imagined.handle)
    assert [each.event for each in entries] == [
        EventType.START,
        EventType.DETECT,
        EventType.RESTART,
        EventType.END,
    ]


@pytest.mark.process
@pytest.mark.parametrize(
    ("failing", "says"),
    [
        ({"status": 503, "verb": "patch", "resource": "configmaps"}, "does not answer"),
        ({"status": 503, "verb": "create", "resource": "pods"}, "does not answer"),
        (
            {"status": 403, "message": "exceeded quota: few", "verb": "create", "resource": "pods"},
            "has no room for the job",
        ),
    ],
)
def test_a_restart_that_is_not_possible_now_is_carried_out_later(
    own: KubernetesDouble,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    failing: dict[str, Any],
    says: str,
) -> None:
    """As while the API is away for longer than requests are repeated, or a quota is full."""
    caplog.set_level(logging.INFO)
    monkeypatch.setattr(backend_module, "RETRY_FOR", 0.3)
    monkeypatch.setattr(driver, "AGAIN_AFTER", 0.05)
    imagined = ImaginedGroup(own).followed()
    fault = own.fail(times=5, **failing)
    imagined.become(statuses.exited(139))
    imagined.until_restarted(1)
    imagined.become(statuses.exited(0))
    assert imagined.end().state is State.SUCCEEDED
    assert fault.fits == 5
    [said] = [each for each in caplog.messages if "restarted once that is possible" in each]
    assert says in said
    assert len([each for each in caplog.messages if each.endswith("restarting chief")]) == 1


@pytest.mark.process
@pytest.mark.parametrize(
    ("verb", "resource"),
    [("patch", "configmaps"), ("create", "pods")],
)
def test_a_right_that_is_withdrawn_for_a_moment_ends_no_job(
    own: KubernetesDouble, verb: str, resource: str
) -> None:
    imagined = ImaginedGroup(own).followed()
    own.deny(verb, resource)
    own.cut_watches()
    imagined.become(statuses.exited(139))
    own.wait_for(
        lambda: any(
            (each.verb, each.resource, each.status) == (verb, resource, 403)
            for each in own.requests
        ),
        "a request that is not allowed",
    )
    own.allow(verb, resource)
    imagined.until_restarted(1)
    imagined.become(statuses.exited(0))
    assert imagined.end().state is State.SUCCEEDED


@pytest.mark.process
def test_a_right_that_stays_withdrawn_leaves_the_job_to_the_retries_of_its_task(
    own: KubernetesDouble, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(backend_module, "RETRY_FOR", 0.3)
    imagined = ImaginedGroup(own).followed()
    own.deny("create", "pods")
    imagined.become(statuses.exited(139))
    ended = imagined.end()
    assert ended.state is State.LOST
    assert 'cannot create resource "pods"' in ended.reason


@pytest.mark.process
@pytest.mark.parametrize("plural", ["services", "networkpolicies"])
def test_what_all_pods_need_is_made_again_at_a_restart(own: KubernetesDouble, plural: str) -> None:
    group = ImaginedGroup(own, replicas=SERVED)
    made = own.find(plural, "job", group.namespace)
    assert made

    group.followed()
    own.delete(plural, "job", group.namespace)
    group.become(statuses.exited(139), "worker-0")
    group.until_restarted(1, "worker-0")
    again = own.find(plural, "job", group.namespace) or {}
    assert again.get("spec") == made["spec"]
    group.become(statuses.exited(0))
    assert group.end().state is State.SUCCEEDED


@pytest.mark.process
def test_a_group_that_cannot_be_read_is_followed_later(
    own: KubernetesDouble, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(backend_module, "RETRY_FOR", 0.3)
    monkeypatch.setattr(driver, "AGAIN_AFTER", 0.05)
    imagined = ImaginedGroup(own)
    own.fail(503, verb="get", resource="configmaps", times=5)
    imagined.followed().become(statuses.exited(0))
    assert imagined.end().state is State.SUCCEEDED


@pytest.fixture
def quickly(monkeypatch: pytest.MonkeyPatch) -> None:
    """Decisions on the size of a group are made at once."""
    monkeypatch.setattr(size, "PLACED_WITHIN", 1.0)
    monkeypatch.setattr(size, "JOIN_TOGETHER", 0.1)
    monkeypatch.setattr(wanted, "READ_EVERY", 0.1)
    monkeypatch.setattr(driver, "AGAIN_AFTER", 0.1)


ELASTIC = [{"role": "chief"}, {"role": "worker", "count": "1..3"}]
PEERS = {"strategy": "multi_worker_mirrored", "replicas": ELASTIC}


def absent(group: ImaginedGroup, replica: str) -> str:
    """The workers that a replica is told not to wait for."""
    environment = group.pod(replica)["spec"]["containers"][0]["env"]
    return "".join(each["value"] for each in environment if each["name"] == Variable.WITHOUT)


def until_restarted(group: ImaginedGroup, times: int) -> None:
    for each in map(str, group.job.names()):
        group.until_restarted(times, each)


@pytest.mark.process
@pytest.mark.usefixtures("quickly")
def test_peers_begin_without_a_worker_that_no_node_takes_and_take_it_later(
    own: KubernetesDouble, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    group = ImaginedGroup(own, {"worker-2": statuses.unschedulable()}, **PEERS)
    for each in ("chief", "worker-0", "worker-1"):
        own.imagine(f"job-{each}-r1", statuses.running(), group.namespace)
    own.imagine("job-worker-2-r1", statuses.unschedulable(), group.namespace)
    group.followed()
    until_restarted(group, 1)
    everybody = [str(name) for name in group.job.names()]
    assert {absent(group, each) for each in everybody} == {"worker-2"}
    for each in everybody:
        own.imagine(f"job-{each}-r2", statuses.running(), group.namespace)
    group.become(statuses.running(), "worker-2")
    until_restarted(group, 2)
    assert {absent(group, each) for each in everybody} == {""}
    group.become(statuses.exited(0))
    assert group.end().state is State.SUCCEEDED
    assert "2 of 3 workers go on: worker-2 has no place" in caplog.text
    assert "worker-2 has a place: going on with 3 of 3 workers" in caplog.text
    events = group.launcher.events(group.handle)
    assert not [each for each in events if each.event is EventType.DETECT]


@pytest.mark.process
@pytest.mark.usefixtures("quickly")
def test_peers_begin_with_the_workers_that_a_quota_has_room_for_and_take_others_later(
    own: KubernetesDouble,
) -> None:
    group = ImaginedGroup(own, quota=3, **PEERS)
    for count in (1, 2, 3):
        for name in group.job.names():
            own.imagine(f"job-{name}-r{count}", statuses.running(), group.namespace)
    group.followed()
    group.until_restarted(1)
    assert absent(group, "chief") == "worker-2"
    own.edit("resourcequotas", "few", _allow_all, group.namespace)
    group.until_restarted(2)
    assert absent(group, "chief") == ""
    group.become(statuses.exited(0))
    assert group.end().state is State.SUCCEEDED
    events = group.launcher.events(group.handle)
    assert not [each for each in events if each.event is EventType.DETECT]


def _allow_all(quota: dict[str, Any]) -> None:
    quota["spec"]["hard"]["pods"] = "100"


@pytest.mark.process
@pytest.mark.usefixtures("quickly")
def test_a_group_is_suspended_and_resumed_and_another_follower_knows(
    own: KubernetesDouble,
) -> None:
    group = ImaginedGroup(own, **PEERS)
    for name in group.job.names():
        own.imagine(f"job-{name}-r1", statuses.running(), group.namespace)
    group.store.put(SIZE, WantedSize(suspended=True).to_json())
    group.followed()
    own.wait_for(lambda: not own.all("pods", group.namespace), "the end of all pods")
    group.follow()
    assert not group.has_ended()
    group.store.put(SIZE, WantedSize(suspended=False).to_json())
    until_restarted(group, 1)
    group.become(statuses.exited(0))
    assert {each.state for each in group.ends()} == {State.SUCCEEDED}


@pytest.mark.process
@pytest.mark.usefixtures("quickly")
def test_a_quota_that_is_short_has_room_for_the_chief_of_a_resumed_group_first(
    own: KubernetesDouble,
) -> None:
    group = ImaginedGroup(own, quota=3, **PEERS)
    group.store.put(SIZE, WantedSize(suspended=True).to_json())
    group.followed()
    own.wait_for(lambda: not own.all("pods", group.namespace), "the end of all pods")
    # As if the chief's request had come after those of three workers.
    own.fail(403, verb="create", resource="pods", times=1, message="exceeded quota: few")
    group.store.put(SIZE, WantedSize().to_json())
    group.until_restarted(1, "chief")
    group.become(statuses.exited(0))
    assert group.end().state is State.SUCCEEDED


@pytest.mark.process
def test_a_trigger_gives_back_the_pods_of_an_ended_job_before_its_task_resumes(
    own: KubernetesDouble, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(trigger, "FIRE_AFTER", 0.0)
    group = ImaginedGroup(
        own, {"worker-1": statuses.unschedulable()}, replicas=SERVED, deadlines={"start": 1}
    )

    async def fired() -> dict[str, Any]:
        made = trigger.JobTrigger(handle=group.handle, conn_id=CONN_ID, holder="try-1")
        event = await anext(made.run())
        await asyncio.gather(*trigger._ending)  # the loop of a triggerer goes on
        payload: dict[str, Any] = event.payload
        return payload

    event = asyncio.run(fired())
    assert "1 of 4 replicas of job did not start within 1 s" in event["ended"]["reason"]
    own.wait_for(lambda: not own.all("pods", group.namespace), "the end of the pods")
    assert asyncio.run(fired()) == event  # that of another triggerer, which had the trigger too
    assert not own.all("pods", group.namespace)
    assert group.launcher.events(group.handle)
    group.launcher.stop(group.handle)
    assert not own.all("configmaps", group.namespace)


class TestInAQueueOfKueue:
    pytestmark = pytest.mark.process

    @pytest.fixture
    def kueue(
        self, request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> Iterator[KubernetesDouble]:
        version = getattr(request, "param", "v1beta2")
        with KubernetesDouble(tmp_path, kueue_version=version) as double:
            address = connection(Path(double.kubeconfig))
            monkeypatch.setenv(f"AIRFLOW_CONN_{CONN_ID.upper()}", address)
            yield double

    def group(
        self, kueue: KubernetesDouble, *conditions: dict[str, str], **given: Any
    ) -> tuple[ImaginedGroup, str]:
        """A group, and its Workload with these conditions."""
        group = ImaginedGroup(kueue, queue="kueue:research", **given)
        name = group.pod()["metadata"]["labels"]["kueue.x-k8s.io/pod-group-name"]
        status = {"conditions": list(conditions)}
        workload = {"kind": "Workload", "metadata": {"name": name}, "status": status}
        kueue.create(workload, group.namespace)
        return group, name

    @pytest.mark.parametrize(
        ("kueue", "code", "kept"),
        [("v1beta1", 139, True), ("v1beta2", 0, False)],
        indirect=["kueue"],
    )
    def test_no_restart_and_no_group_after_its_end_is_kept(
        self, kueue: KubernetesDouble, code: int, kept: bool
    ) -> None:
        """Kueue keeps a failed pod until another has replaced it, and no successful one."""
        group, workload = self.group(kueue, replicas=SERVED)
        kueue.edit(
            "pods",
            "job-worker-1",
            lambda it: it["metadata"].update(finalizers=["kueue.x-k8s.io/managed"]),
            group.namespace,
        )
        group.followed().become(statuses.exited(code), "worker-1")
        group.until_restarted(1, "worker-1")
        assert ("job-worker-1" in group.uids()) is kept
        group.become(statuses.exited(0))
        assert group.end().state is State.SUCCEEDED
        assert kueue.find("workloads", workload, group.namespace)
        group.launcher.stop(group.handle)
        assert not kueue.find("workloads", workload, group.namespace)

    def test_an_evicted_group_is_created_again_for_the_queue_and_uses_no_budget(
        self, kueue: KubernetesDouble
    ) -> None:
        """Kueue says why in a condition of each pod, and then deletes it."""
        group, _ = self.group(kueue, replicas=SERVED, restarts={"preemptions": 0})
        names = [str(each) for each in group.job.names()]
        group.followed()
        for name in names:
            group.become(statuses.both(statuses.evicted(), statuses.exited(143)), name)
        for name in names:
            group.until_restarted(1, name)
            group.become(statuses.gated(), name)
        for name in names:
            group.become(statuses.running(), name)
        group.become(statuses.exited(0))
        assert group.end().state is State.SUCCEEDED
        events = group.launcher.events(group.handle)
        [evicted] = [each for each in events if each.event is EventType.RESIZE]
        assert "(WorkloadEvicted: Preempted to accommodate a workload)" in evicted.because
        assert not [each for each in events if each.event is EventType.DETECT]

    def test_no_quota_of_a_group_whose_owner_was_deleted_by_hand_is_kept(
        self, kueue: KubernetesDouble
    ) -> None:
        group, workload = self.group(kueue)
        kueue.delete("configmaps", "job", group.namespace)
        assert group.followed().end().state is State.LOST
        group.launcher.stop(group.handle)
        assert not kueue.find("workloads", workload, group.namespace)

    def test_a_job_may_wait_for_hours_and_the_log_has_the_reason(
        self,
        kueue: KubernetesDouble,
        monkeypatch: pytest.MonkeyPatch,
        caplog: pytest.LogCaptureFixture,
    ) -> None:
        caplog.set_level(logging.INFO)
        monkeypatch.setattr(group_module, "_ASK_QUEUE_EVERY", 0.1)
        message = "insufficient unused quota for cpu in flavor default, 200m more needed"
        pending = {"type": "QuotaReserved", "status": "False", "message": message}
        group, _ = self.group(kueue, pending, states={"chief": statuses.gated()})
        with pytest.raises(FinalError, match="there is no LocalQueue research in namespace"):
            group.launcher.check([group.launcher.plan(group.job, "try-1")])
        group.age(10_000)
        group.followed()
        kueue.wait_for(lambda: f"Kueue does not admit job: {message}" in caplog.text, "the reason")
        assert not group.has_ended()
        group.become(statuses.running())
        group.become(statuses.exited(0))
        assert group.end().state is State.SUCCEEDED
        assert caplog.text.count(message) == 1


@pytest.mark.process
def test_a_follower_whose_task_has_a_later_try_ends_nothing(own: KubernetesDouble) -> None:
    group = ImaginedGroup(own)
    old = group.follow(until=time.time() + 2)
    second = group.launcher_of("try-2")
    assert second.start(second.plan(group.job, "try-2")) == group.handle
    assert old.result(30).state is State.LOST
    assert EventType.END not in [each.event for each in second.events(group.handle)]


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
def test_a_pod_has_the_grace_period_of_its_template_before_it_is_replaced(
    own: KubernetesDouble, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(lifecycle, "DELETED_WITHIN", 1.0)
    template = {"spec": {"terminationGracePeriodSeconds": GRACE + 4}}
    group = ImaginedGroup(own, replicas=[{"role": "chief", "pod": template}]).followed()
    own.hold("job-chief", group.namespace)
    own.delete("pods", "job-chief", group.namespace)
    began = time.monotonic()
    group.until_restarted(1)
    assert time.monotonic() - began >= 5.0
    group.become(statuses.exited(0))
    assert group.end().state is State.SUCCEEDED


def test_a_pod_restarts_under_its_address_on_another_node_with_more_memory() -> None:
    resources = {"memory": "3Gi"}
    replicas = [
        {"role": "chief"},
        {"role": "worker", "count": 2, "resources": resources},
        {"role": "ps"},
    ]
    job = described("s3://bucket", replicas=replicas, code="s3://bucket/code")
    plan = plan_pods(job, "try-1", PodSettings(namespace="default", image="image:1"))
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
    assert plain["metadata"]["name"] == f"{first['metadata']['name']}-r2"
    assert plain["metadata"]["labels"] == first["metadata"]["labels"]
    assert (
        plain["spec"]["containers"][0]["resources"] == (first["spec"]["containers"][0]["resources"])
    )
