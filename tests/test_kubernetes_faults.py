"""What the launcher of pods does while the API fails in the ways that real ones do."""

import logging
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from aerotrain.contract.errors import ExitCode, TemporaryError
from aerotrain.contract.status import State
from aerotrain_airflow.launchers import kubernetes as launcher_module
from aerotrain_airflow.launchers.base import LogLine
from aerotrain_airflow.launchers.kubernetes import KubernetesLauncher
from aerotrain_airflow.pods import following
from aerotrain_airflow.pods.plan import PodSettings
from aerotrain_airflow.recovery.ended import Ended
from kubernetes_double import KubernetesDouble, statuses
from kubernetes_worlds import ALONE, CONN_ID, connection, described, make_namespace, person

pytestmark = pytest.mark.process

POD = "job-chief"


class Followed:
    """A set of imagined pods that somebody follows from another thread."""

    def __init__(self, double: KubernetesDouble, namespace: str) -> None:
        self.double = double
        self.namespace = namespace
        self.lines: list[str] = []
        self.launcher = KubernetesLauncher(
            PodSettings(namespace=namespace, image="imagined:1"), CONN_ID, "try-1"
        )
        double.imagine(POD, statuses.running(), namespace)
        self.address = self.launcher.start(
            self.launcher.plan(described("s3://bucket", replicas=ALONE), "try-1")
        )
        self._thread = ThreadPoolExecutor(1)
        self._end: Future[Ended] = self._thread.submit(
            self.launcher.watch, self.address, self._take, until=None
        )
        double.wait_for(lambda: double.watching, "a watch")

    def _take(self, line: LogLine) -> None:
        self.lines.append(line.text)

    def become(self, state: Any) -> None:
        self.double.become(POD, state, self.namespace)

    def say(self, *lines: str) -> None:
        self.double.say(POD, *lines, namespace=self.namespace)

    def hears(self, *lines: str) -> None:
        """Wait until exactly these lines were told."""
        self.double.wait_for(lambda: len(self.lines) >= len(lines), f"{lines}")
        assert self.lines == list(lines)

    def end(self) -> Ended:
        return self._end.result(30)


@pytest.fixture
def own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[KubernetesDouble]:
    """A stand-in API of this test's own, to break."""
    with KubernetesDouble(tmp_path, token="first") as double:
        monkeypatch.setenv(f"AIRFLOW_CONN_{CONN_ID.upper()}", connection(Path(double.kubeconfig)))
        yield double


@pytest.fixture
def followed(own: KubernetesDouble) -> Followed:
    return Followed(own, make_namespace(person(Path(own.kubeconfig)), {}))


@pytest.mark.parametrize("status", [429, 500, 503])
def test_an_api_that_is_busy_is_asked_again(own: KubernetesDouble, status: int) -> None:
    namespace = make_namespace(person(Path(own.kubeconfig)), {})
    own.fail(status, verb="create", times=2)
    own.fail(status, verb="list")
    own.fail(status, verb="watch")
    followed = Followed(own, namespace)
    followed.become(statuses.exited(0))
    assert followed.end().state is State.SUCCEEDED


def test_a_creation_whose_answer_was_lost_makes_nothing_twice(own: KubernetesDouble) -> None:
    namespace = make_namespace(person(Path(own.kubeconfig)), {})
    own.fail(503, verb="create", resource="configmaps", done=True)
    own.fail(503, verb="create", resource="pods", done=True)
    followed = Followed(own, namespace)
    assert followed.address.endswith("/try-1")
    assert len(own.all("pods", namespace)) == 1
    followed.become(statuses.exited(0))
    assert followed.end().state is State.SUCCEEDED


@pytest.mark.parametrize("trouble", ["cut_watches", "expire_watches"])
def test_a_watch_that_breaks_is_taken_up_again(followed: Followed, trouble: str) -> None:
    getattr(followed.double, trouble)()
    followed.become(statuses.exited(65, message="the label 7 is outside 0 to 3"))
    ended = followed.end()
    assert (ended.state, "the label 7" in ended.reason) == (State.FAILED, True)


def test_what_happens_while_the_api_is_away_is_seen_when_it_is_back(followed: Followed) -> None:
    followed.say("before")
    followed.hears("before")
    with followed.double.away():
        followed.say("meanwhile")
    followed.say("after")
    followed.hears("before", "meanwhile", "after")
    followed.become(statuses.exited(0))
    assert followed.end().state is State.SUCCEEDED


def test_lines_come_once_though_their_stream_is_cut(followed: Followed) -> None:
    followed.say("one", "two")
    followed.hears("one", "two")
    followed.double.cut_logs()
    followed.say("three")
    followed.hears("one", "two", "three")
    followed.become(statuses.exited(0))
    followed.end()
    assert followed.lines == ["one", "two", "three"]


def test_a_rotated_log_is_read_on(followed: Followed) -> None:
    followed.say("one")
    followed.hears("one")
    followed.double.rotate_log(POD, namespace=followed.namespace)
    followed.say("two")
    followed.hears("one", "two")


def test_a_credential_that_is_renewed_in_the_middle_is_found(followed: Followed) -> None:
    followed.say("one")
    followed.hears("one")
    followed.double.rotate_token("second")
    followed.double.cut_watches()
    followed.double.cut_logs()
    followed.say("two")
    followed.hears("one", "two")
    followed.become(statuses.exited(0))
    assert followed.end().state is State.SUCCEEDED


def test_what_kubernetes_says_of_a_failure_is_told(
    followed: Followed, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    namespace = followed.namespace
    followed.double.tell(POD, "FailedMount", "the volume is busy", namespace=namespace)
    followed.become(statuses.exited(ExitCode.FINAL))
    assert followed.end().state is State.FAILED
    assert "chief FailedMount: the volume is busy" in caplog.messages


def test_who_waits_asks_at_most_twelve_times_a_minute(
    own: KubernetesDouble, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Sixty times as fast: a watch of a second, and a list of all pods after five."""
    monkeypatch.setattr(following, "WATCH_SECONDS", 1)
    monkeypatch.setattr(following, "RESYNC_SECONDS", 5)
    followed = Followed(own, make_namespace(person(Path(own.kubeconfig)), {}))
    began = len(own.requests)

    def six_minutes() -> bool:
        return sum(each.verb == "watch" for each in own.requests[began:]) >= 6

    own.wait_for(six_minutes)
    assert len(own.requests) - began <= 6 * 12
    followed.become(statuses.exited(0))
    assert followed.end().state is State.SUCCEEDED


def test_a_pod_on_a_silent_node_does_not_keep_the_next_try_waiting(
    followed: Followed, monkeypatch: pytest.MonkeyPatch
) -> None:
    from aerotrain_airflow.pods import lifecycle

    monkeypatch.setattr(lifecycle, "_GOING", 1.0)
    followed.double.hold(POD, followed.namespace)
    followed.double.delete("pods", POD, followed.namespace)
    second = KubernetesLauncher(
        PodSettings(namespace=followed.namespace, image="imagined:1"), CONN_ID, "try-2"
    )
    address = second.start(second.plan(described("s3://bucket", replicas=ALONE), "try-2"))
    assert address.endswith("/try-2")
    assert followed.end().state is State.LOST


def test_an_api_that_stays_away_fails_the_start_for_now(
    own: KubernetesDouble, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(launcher_module, "PATIENCE", 0.5)
    launcher = KubernetesLauncher(PodSettings(image="imagined:1"), CONN_ID, "try-1")
    plan = launcher.plan(described("s3://bucket", replicas=ALONE), "try-1")
    with own.away(), pytest.raises(TemporaryError, match="the Kubernetes API does not answer"):
        launcher.start(plan)
