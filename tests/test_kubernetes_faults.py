"""What the launcher of pods does while the API fails as real ones do."""

import logging
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import pytest

from aerotrain.contract.status import State
from aerotrain.launch.backend import LogLine
from aerotrain_airflow.kubernetes import lifecycle
from support.imagined_groups import ImaginedGroup
from support.kubernetes_double import KubernetesDouble, statuses
from support.kubernetes_worlds import ALONE

pytestmark = pytest.mark.process


@pytest.fixture
def followed(own: KubernetesDouble) -> ImaginedGroup:
    return ImaginedGroup(own).followed()


def test_a_request_to_a_busy_api_is_repeated_and_makes_no_duplicate(own: KubernetesDouble) -> None:
    own.fail(429, verb="create", resource="configmaps")
    own.fail(500, verb="list")
    own.fail(503, verb="watch")
    for resource in ("configmaps", "pods"):  # done, and the answer is lost
        own.fail(503, verb="create", resource=resource, done=True)
    followed = ImaginedGroup(own).followed()
    assert followed.handle.endswith("/try-1")
    assert len(own.all("pods", followed.namespace)) == 1
    followed.become(statuses.exited(0))
    assert followed.end().state is State.SUCCEEDED


def renew_credential(group: ImaginedGroup) -> None:
    group.double.rotate_token("second")
    group.double.cut_watches()
    group.double.cut_logs()


def break_api(group: ImaginedGroup) -> None:
    with group.double.away():
        group.say("meanwhile")


@pytest.mark.parametrize(
    ("trouble", "meanwhile"),
    [
        (lambda group: group.double.cut_watches(), []),
        (lambda group: group.double.expire_watches(), []),
        (lambda group: group.double.cut_logs(), []),
        (lambda group: group.double.rotate_log("job-chief", namespace=group.namespace), []),
        (renew_credential, []),
        (break_api, ["meanwhile"]),
    ],
    ids=["watch cut", "watch expired", "log cut", "log rotated", "credential renewed", "API away"],
)
def test_a_follower_continues_after_a_fault_and_passes_on_each_line_once(
    followed: ImaginedGroup,
    caplog: pytest.LogCaptureFixture,
    trouble: Callable[[ImaginedGroup], None],
    meanwhile: list[str],
) -> None:
    caplog.set_level(logging.INFO)
    followed.say("one", "two")
    followed.hears("one", "two")
    trouble(followed)
    followed.say("three")
    followed.hears("one", "two", *meanwhile, "three")
    followed.become(statuses.exited(65, message="the label 7 is outside 0 to 3"))
    ended = followed.end()
    assert (ended.state, "the label 7" in ended.reason) == (State.FAILED, True)
    assert followed.lines == ["one", "two", *meanwhile, "three"]
    if meanwhile:
        said = [each for each in caplog.messages if each.startswith("the Kubernetes API is")]
        assert [each.split()[4] for each in said] == ["away,", "back"]


@pytest.mark.parametrize(
    "answer",
    [
        "unable to retrieve container logs for containerd://0f3c",
        "rpc error: code = NotFound desc = an error occurred\nmore of it\n",
    ],
)
def test_an_error_of_a_kubelet_in_place_of_a_log_is_no_line_and_no_position(
    followed: ImaginedGroup, answer: str
) -> None:
    followed.say("one")
    followed.hears("one")
    followed.double.hide_log("job-chief", answer, followed.namespace)
    followed.say("two")
    followed.become(statuses.exited(139))
    followed.until_restarted(1)
    followed.say("three")
    followed.hears("one", "three")
    followed.become(statuses.exited(0))
    assert followed.end().state is State.SUCCEEDED


def test_a_node_that_is_not_ready_is_reported_once_and_again_when_it_responds(
    followed: ImaginedGroup, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    followed.become(statuses.node_not_ready())
    followed.become(statuses.node_not_ready())
    followed.double.wait_for(lambda: "chief is on a node that is not" in caplog.text, "the report")
    followed.become(statuses.running())
    followed.double.wait_for(lambda: "chief is on a node that is ready again" in caplog.text, "it")
    followed.become(statuses.exited(0))
    assert followed.end().state is State.SUCCEEDED
    assert caplog.text.count("is on a node that") == 2


def test_a_job_that_logs_stores_its_positions_rarely_and_when_its_follower_is_replaced(
    own: KubernetesDouble,
) -> None:
    group = ImaginedGroup(own)
    started = _patches(own)

    def take(line: LogLine) -> None:
        if line.text == "the last":
            raise InterruptedError("this follower ends")
        group.lines.append(line.text)

    with ThreadPoolExecutor(1) as thread:
        first = thread.submit(group.launcher.watch, group.handle, take, until=None)
        for number in range(20):
            group.say(f"line {number}")
            own.wait_for(lambda: first.done() or f"line {number}" in group.lines, "the line")  # noqa: B023
        group.say("the last")
        with pytest.raises(InterruptedError):
            first.result(30)
    assert _patches(own) == started + 1
    group.lines.clear()
    group.followed().become(statuses.exited(0))
    assert group.end().state is State.SUCCEEDED
    assert group.lines == ["the last"]


def _patches(double: KubernetesDouble) -> int:
    return sum((each.verb, each.resource) == ("patch", "configmaps") for each in double.requests)


def test_a_pod_on_an_unresponsive_node_does_not_delay_the_next_try(
    followed: ImaginedGroup, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(lifecycle, "DELETED_WITHIN", 1.0)
    followed.double.hold("job-chief", followed.namespace)
    followed.double.delete("pods", "job-chief", followed.namespace)
    second = followed.launcher_of("try-2")
    another = replace(followed.job, arguments={"another": "job"})  # one that adopts nothing
    handle = second.start(second.plan(another, "try-2"))
    assert handle.endswith("/try-2")
    assert followed.end().state is State.LOST


def test_a_start_waits_until_a_quota_has_room_for_all_pods(
    own: KubernetesDouble, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    monkeypatch.setattr(lifecycle, "ROOM_EVERY", 0.05)
    group = ImaginedGroup(own)  # it has one of the two pods of the quota
    quota = {"kind": "ResourceQuota", "metadata": {"name": "few"}, "spec": {"hard": {"pods": "2"}}}
    own.create(quota, group.namespace)
    second = group.launcher_of("try-1")
    several = group.job_of(
        name="second", strategy="multi_worker_mirrored", replicas=[*ALONE, {"role": "worker"}]
    )
    for name in several.names():
        own.imagine(f"second-{name}", statuses.running(), group.namespace)
    with ThreadPoolExecutor(1) as thread:
        starting = thread.submit(second.start, second.plan(several, "try-1"))
        own.wait_for(lambda: "second waits for a quota" in caplog.text, "the message")
        group.launcher.stop(group.handle)
        assert starting.result(30).endswith("/try-1")
    assert caplog.text.count("second waits for a quota") == 1
    assert set(group.uids()) == {"second-chief", "second-worker-0"}
