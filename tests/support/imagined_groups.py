"""Replica groups of imagined pods in a double of the API; a test sets their age and states."""

from collections.abc import Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, Self

import pytest

from aerotrain.contract.job import Job
from aerotrain.launch.backend import LogLine
from aerotrain.launch.decision import Ended
from aerotrain.launch.launcher import Launcher
from aerotrain.store import open_store
from aerotrain_airflow.kubernetes.backend import KubernetesBackend
from aerotrain_airflow.kubernetes.identity import restarts_of, without_restarts
from aerotrain_airflow.kubernetes.plan import PodSettings
from support.kubernetes_double import KubernetesDouble, statuses
from support.kubernetes_double.statuses import Edit
from support.kubernetes_worlds import ALONE, CONN_ID, connection, described, make_namespace, person


class ImaginedGroup:
    """The replica group of a job that is not followed yet.

    Its pods run, except those for which ``states`` gives another state. ``quota`` is the number of
    pods that their namespace may have.
    """

    def __init__(
        self,
        double: KubernetesDouble,
        states: Mapping[str, Edit] | None = None,
        queue: str = "",
        quota: int | None = None,
        **job: Any,
    ) -> None:
        self.double = double
        self._queue = queue
        core = person(Path(double.kubeconfig))
        self.namespace = make_namespace(core, {})
        if quota is not None:
            few = {"metadata": {"name": "few"}, "spec": {"hard": {"pods": str(quota)}}}
            core.create_namespaced_resource_quota(self.namespace, few)
        self.job = self.job_of(**job)
        #: Where a user sets the size of the job.
        self.store = open_store((double.folder / "store" / self.namespace).as_uri())
        for name in self.job.names():
            state = (states or {}).get(str(name), statuses.running())
            double.imagine(f"job-{name}", state, self.namespace)
        self.launcher = self.launcher_of("try-1")
        self.handle = self.launcher.start(self.launcher.plan(self.job, "try-1"))
        self.lines: list[str] = []
        self._threads = ThreadPoolExecutor(4)
        self._ends: list[Future[Ended]] = []

    @staticmethod
    def job_of(**job: Any) -> Job:
        """A job of one replica, unless ``job`` says otherwise."""
        return described("s3://bucket", **{"replicas": ALONE, **job})

    def launcher_of(self, holder: str) -> Launcher[Any]:
        settings = PodSettings(namespace=self.namespace, image="imagined:1", queue=self._queue)
        backend = KubernetesBackend(settings, CONN_ID, holder)
        return Launcher(backend, open_store=lambda _: self.store)

    def follow(self, until: float | None = None) -> Future[Ended]:
        """Follow the replica group from another thread, as a triggerer does."""
        end = self._threads.submit(self.launcher.watch, self.handle, self._take, until=until)
        self._ends.append(end)
        return end

    def followed(self) -> Self:
        """Follow the replica group, and return after the follower's first observation."""
        before = self.double.watching
        end = self.follow()
        self.double.wait_for(lambda: self.double.watching > before or end.done(), "a watch")
        return self

    def end(self) -> Ended:
        """The end that the first follower reports."""
        return self.ends()[0]

    def has_ended(self) -> bool:
        """Whether any follower has ended."""
        return any(end.done() for end in self._ends)

    def ends(self) -> list[Ended]:
        """The end that each follower reports, in the order in which they started."""
        return [end.result(30) for end in self._ends]

    def _take(self, line: LogLine) -> None:
        self.lines.append(line.text)

    def become(self, state: Edit, replica: str = "chief") -> None:
        self.double.become(self.pod(replica)["metadata"]["name"], state, self.namespace)

    def say(self, *lines: str) -> None:
        self.double.say(self.pod()["metadata"]["name"], *lines, namespace=self.namespace)

    def hears(self, *lines: str) -> None:
        """Wait until exactly these lines have been passed on."""
        self.double.wait_for(lambda: len(self.lines) >= len(lines), f"{lines}")
        assert self.lines == list(lines)

    def pod(self, replica: str = "chief") -> dict[str, Any]:
        """The newest pod of a replica."""
        name = f"job-{replica}"
        pods = self.double.all("pods", self.namespace)
        own = [each for each in pods if without_restarts(each) == name]
        return max(own, key=restarts_of, default={"metadata": {}})

    def uids(self) -> dict[str, str]:
        """The uid of each pod, by name."""
        pods = self.double.all("pods", self.namespace)
        return {pod["metadata"]["name"]: pod["metadata"]["uid"] for pod in pods}

    def until_restarted(self, times: int, replica: str = "chief") -> None:
        self.double.wait_for(
            lambda: self.pod(replica)["metadata"] and restarts_of(self.pod(replica)) == times,
            f"restart {times} of {replica}",
        )

    def age(self, seconds: float) -> None:
        """Shift all timestamps of the group by ``seconds`` into the past."""
        for plural in ("configmaps", "pods"):
            for each in self.double.all(plural, self.namespace):
                self.double.edit(plural, each["metadata"]["name"], _aged(seconds), self.namespace)


def _aged(seconds: float) -> Edit:
    def edit(manifest: dict[str, Any]) -> None:
        metadata = manifest["metadata"]
        metadata["creationTimestamp"] = _earlier(metadata["creationTimestamp"], seconds)
        for each in manifest.get("status", {}).get("containerStatuses", ()):
            for state in each["state"].values():
                if "startedAt" in state:
                    state["startedAt"] = _earlier(state["startedAt"], seconds)

    return edit


def _earlier(stamp: str, seconds: float) -> str:
    moment = datetime.fromisoformat(stamp) - timedelta(seconds=seconds)
    return moment.astimezone(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


@pytest.fixture
def own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[KubernetesDouble]:
    """A double of the API for this test alone, which the test may break."""
    with KubernetesDouble(tmp_path, token="first") as double:
        monkeypatch.setenv(f"AIRFLOW_CONN_{CONN_ID.upper()}", connection(Path(double.kubeconfig)))
        yield double
