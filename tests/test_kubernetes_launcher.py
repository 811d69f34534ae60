"""The launcher of pods, against a double of the API and, marked ``cluster``, a real Kubernetes."""

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from aerotrain.contract.errors import FinalError, TemporaryError
from aerotrain.contract.status import State
from aerotrain.launch.decision import Ended
from aerotrain.launch.launcher import Launcher
from aerotrain_airflow.kubernetes.lines import LONGEST
from support.kubernetes_worlds import ALONE, World, eventually, on_a_cluster, quota_of


def watched(launcher: Launcher[Any], handle: str) -> tuple[Ended, list[str]]:
    """The end of the replica group, and every line that was passed on."""
    lines: list[str] = []
    ended = launcher.watch(handle, lambda line: lines.append(str(line)), until=None)
    return ended, lines


def ended_by(launcher: Launcher[Any], handle: str) -> Ended:
    ended, _ = watched(launcher, handle)
    launcher.stop(handle)
    return ended


@pytest.fixture
def running(world: World) -> Iterator[tuple[Launcher[Any], str]]:
    """A replica group whose replicas all run, and would for long."""
    launcher = world.launcher()
    handle = launcher.start(launcher.plan(world.job(), "try-1"))
    eventually(lambda: [pod.status.phase for pod in world.pods().values()] == ["Running"] * 4)
    yield launcher, handle
    launcher.stop(handle)


def test_replicas_find_each_other_and_the_job_leaves_nothing_but_its_result(world: World) -> None:
    launcher = world.launcher()
    job = world.job(arguments={"chief": "meet"})
    handle = launcher.start(launcher.plan(job, "try-1"))
    ended, lines = watched(launcher, handle)
    assert ended.state is State.SUCCEEDED, (ended, lines)
    assert "[chief] met ps-0, worker-0, worker-1" in lines
    assert {"[worker-1] hello from worker-1", "[ps-0] hello from ps-0"} <= set(lines)
    assert len(lines) == len(set(lines))
    launcher.stop(handle)
    eventually(lambda: not world.pods())
    for left in (
        world.core.list_namespaced_service(world.namespace).items,
        [
            each
            for each in world.core.list_namespaced_config_map(world.namespace).items
            if each.metadata.name != "kube-root-ca.crt"
        ],
    ):
        assert not left


@pytest.mark.parametrize(
    ("does", "state", "reason"),
    [
        ("crash", State.FAILED, "ZeroDivisionError: a bug of the user's own"),
        ("vanish", State.LOST, "was ended by signal 11"),
    ],
)
def test_the_end_of_a_failed_replica_has_its_reason(
    world: World, does: str, state: State, reason: str
) -> None:
    launcher = world.launcher()
    job = world.job(replicas=ALONE, arguments={"chief": does}, restarts={"crashes": 0})
    ended = ended_by(launcher, launcher.start(launcher.plan(job, "try-1")))
    assert (ended.state, reason in ended.reason) == (state, True), ended


def test_a_second_try_adopts_a_running_group_and_the_first_can_no_longer_end_it(
    world: World, running: tuple[Launcher[Any], str]
) -> None:
    first, handle = running
    uids = {name: pod.metadata.uid for name, pod in world.pods().items()}
    second = world.launcher("try-2")
    assert second.start(second.plan(world.job(), "try-2")) == handle
    first.stop(handle)
    assert {name: pod.metadata.uid for name, pod in world.pods().items()} == uids
    second.stop(handle)
    eventually(lambda: not world.pods())


@on_a_cluster
def test_a_group_with_a_failed_replica_is_adopted_and_the_replica_restarted(
    world: World, running: tuple[Launcher[Any], str]
) -> None:
    _, handle = running
    before = world.pods()
    world.core.delete_namespaced_pod("job-worker-1", world.namespace)
    eventually(lambda: "job-worker-1" not in world.pods())
    second = world.launcher("try-2")
    assert second.start(second.plan(world.job(), "try-2")) == handle
    with ThreadPoolExecutor(1) as thread:
        end = thread.submit(watched, second, handle)
        eventually(lambda: "job-worker-1-r1" in world.pods())
        after = world.pods()
        assert after["job-chief"].metadata.uid == before["job-chief"].metadata.uid
        second.stop(handle)
        assert end.result(60)[0].state is State.LOST


@on_a_cluster
def test_a_group_with_more_failures_than_its_budget_is_launched_again(world: World) -> None:
    job = world.job(restarts={"preemptions": 0})
    first, second = world.launcher(), world.launcher("try-2")
    first.start(first.plan(job, "try-1"))
    eventually(lambda: [pod.status.phase for pod in world.pods().values()] == ["Running"] * 4)
    before = world.pods()
    world.core.delete_namespaced_pod("job-worker-1", world.namespace)
    eventually(lambda: "job-worker-1" not in world.pods())
    handle = second.start(second.plan(job, "try-2"))
    assert handle.endswith("/try-2")
    after = world.pods()
    assert after.keys() == before.keys()
    assert after["job-chief"].metadata.uid != before["job-chief"].metadata.uid
    second.stop(handle)


@on_a_cluster
def test_every_line_is_passed_on_once_although_the_follower_is_replaced(world: World) -> None:
    launcher = world.launcher()
    job = world.job(replicas=ALONE, arguments={"chief": "count", "lines": 80})
    handle = launcher.start(launcher.plan(job, "try-1"))
    told: list[str] = []

    def tell(line: Any) -> None:
        if len(told) == 30:
            raise InterruptedError("this teller goes")
        told.append(str(line))

    with pytest.raises(InterruptedError):
        launcher.watch(handle, tell, until=None)
    ended = launcher.watch(handle, lambda line: told.append(str(line)), until=None)
    launcher.stop(handle)
    assert ended.state is State.SUCCEEDED
    lines = [each for each in told if "line" in each]
    assert lines == [f"[chief] line {number}" for number in range(80)]


@on_a_cluster
def test_a_line_that_is_too_long_is_cut_and_ends_no_job(world: World) -> None:
    launcher = world.launcher()
    letters = 5 << 20
    job = world.job(replicas=ALONE, arguments={"chief": "shout", "letters": letters})
    ended, lines = watched(launcher, launcher.start(launcher.plan(job, "try-1")))
    assert ended.state is State.SUCCEEDED, ended
    assert lines == [
        "[chief] hello from chief",
        "[chief] before",
        f"[chief] {'x' * LONGEST} [{letters - LONGEST} more bytes of this line were cut]",
        "[chief] after",
    ]


class TestWhatCannotStart:
    """Each is rejected, or ended by its deadline, with a one-sentence reason."""

    def test_a_namespace_that_does_not_exist(self, world: World) -> None:
        launcher = world.launcher(namespace="nowhere-to-be-found")
        with pytest.raises(FinalError, match="there is no namespace nowhere-to-be-found"):
            launcher.check([launcher.plan(world.job(), "try-1")])

    @on_a_cluster
    def test_an_image_that_does_not_exist(self, world: World) -> None:
        launcher = world.launcher()
        job = world.job(
            replicas=[{**ALONE[0], "pod": image("registry.invalid/nothing:1")}],
            deadlines={"start": 20},
        )
        ended = ended_by(launcher, launcher.start(launcher.plan(job, "try-1")))
        assert ended.state in (State.FAILED, State.LOST)
        assert "registry.invalid/nothing:1" in ended.reason

    @on_a_cluster
    def test_resources_that_no_node_has(self, world: World) -> None:
        launcher = world.launcher()
        huge = {"role": "chief", "resources": {"cpu": 10_000}}
        job = world.job(replicas=[huge], deadlines={"start": 5})
        ended = ended_by(launcher, launcher.start(launcher.plan(job, "try-1")))
        assert ended.state is State.LOST
        assert "did not start within 5 s" in ended.reason
        assert "nsufficient cpu" in ended.reason

    @on_a_cluster
    def test_a_secret_that_does_not_exist(self, world: World) -> None:
        launcher = world.launcher(store_secret="forgotten")
        plan = launcher.plan(world.job(replicas=ALONE), "try-1")
        ended = ended_by(launcher, launcher.start(plan))
        assert ended.state is State.FAILED
        assert 'secret "forgotten" not found' in ended.reason

    def test_more_than_the_quota_allows(self, world: World) -> None:
        quota = {"metadata": {"name": "few"}, "spec": {"hard": {"pods": "2"}}}
        world.core.create_namespaced_resource_quota(world.namespace, quota)
        eventually(lambda: quota_of(world).status.hard)
        launcher = world.launcher()
        plan = launcher.plan(world.job(deadlines={"start": 1}), "try-1")
        with pytest.raises(TemporaryError, match=r"has no room for the job: .*exceeded quota"):
            launcher.start(plan)
        eventually(lambda: not world.pods())

    @on_a_cluster
    def test_pods_that_the_namespace_does_not_admit(self, world: World) -> None:
        container = {"name": "replica", "securityContext": {"runAsUser": 0}}
        template = {"spec": {"containers": [container]}}
        launcher = world.launcher()
        job = world.job(replicas=[{**ALONE[0], "pod": template}])
        with pytest.raises(FinalError, match="violates PodSecurity"):
            launcher.check([launcher.plan(job, "try-1")])


def image(name: str) -> dict[str, Any]:
    return {"spec": {"containers": [{"name": "replica", "image": name}]}}


@on_a_cluster
def test_an_out_of_memory_failure_is_reported_as_one(world: World) -> None:
    launcher = world.launcher()
    job = world.job(replicas=ALONE, arguments={"chief": "devour"})
    ended = ended_by(launcher, launcher.start(launcher.plan(job, "try-1")))
    assert ended.state is State.LOST
    assert "ran out of memory" in ended.reason
