"""What users and operators do to pods of a job: on a real cluster whose node is busy."""

import json
import subprocess
import sys
import time
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any

import kubernetes.client
import pytest
import yaml

from aerotrain.contract.status import State
from aerotrain.launch.decision import Ended
from aerotrain_airflow.kubernetes.identity import POSITIONS
from aerotrain_airflow.kubernetes.lines import moment
from support.kubernetes_worlds import ALONE, CONN_ID, World, connection, eventually, grant

pytestmark = [
    pytest.mark.cluster,
    pytest.mark.timeout(900),
    pytest.mark.parametrize("world", ["cluster"], indirect=True),
]

#: Evictions of each worker of two.
TIMES = 13

SERVE = {"chief": "await_return", "worker": "report", "ps": "report"}


class Running:
    """A job that runs and is followed; its lines are kept."""

    def __init__(self, world: World, **job: Any) -> None:
        launcher = world.launcher()
        self.handle = launcher.start(launcher.plan(world.job(**job), "try-1"))
        self.lines: list[str] = []
        self.end: Future[Ended] = ThreadPoolExecutor(1).submit(
            launcher.watch, self.handle, lambda line: self.lines.append(str(line)), until=None
        )

    def hears(self, line: str, times: int = 1) -> None:
        eventually(lambda: self.lines.count(line) >= times or self.end.done())
        assert not self.end.done(), self.end.result()


@pytest.fixture
def load() -> Iterator[None]:
    """Twice as many busy processes as a small node has cores."""
    busy = [subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in range(4)]
    yield
    for each in busy:
        each.kill()
        each.wait()


@pytest.mark.usefixtures("load")
def test_evictions_on_a_busy_node_lose_no_position_of_a_log_and_end_no_job(world: World) -> None:
    workers = [f"worker-{index}" for index in range(2)]
    awaited = dict.fromkeys(workers, TIMES)
    job = Running(world, arguments={**SERVE, "awaited": awaited, "deadline": 800.0})
    for life in range(TIMES):
        for worker in workers:
            job.hears(f"[{worker}] hello from {worker}", life + 1)
            pod = f"job-{worker}" + (f"-r{life}" if life else "")
            eviction = {"metadata": {"name": pod, "namespace": world.namespace}}
            world.core.create_namespaced_pod_eviction(pod, world.namespace, eviction)
    ended = job.end.result(120)
    assert ended.state is State.SUCCEEDED, ended
    owner = world.core.read_namespaced_config_map("job", world.namespace)
    positions = json.loads(owner.metadata.annotations[POSITIONS])
    assert {*workers, "chief", "ps-0"} == positions.keys()
    assert all(map(moment, positions.values()))
    assert not [each for each in job.lines if "unable to retrieve" in each]


def test_a_replica_saves_for_as_long_as_the_grace_period_of_its_template(world: World) -> None:
    template = {"spec": {"terminationGracePeriodSeconds": 60}}
    arguments = {"chief": "save_slowly", "seconds": 30}
    chief = [{**ALONE[0], "pod": template}]
    job = Running(world, replicas=chief, arguments=arguments)
    job.hears("[chief] trains")
    world.core.delete_namespaced_pod("job-chief", world.namespace)
    assert job.end.result(180).state is State.SUCCEEDED
    assert "[chief] preempted (SIGTERM)" in job.lines


def test_rights_that_are_withdrawn_for_seconds_end_no_job(
    world: World, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    kubeconfig = tmp_path / "kubeconfig"
    kubeconfig.write_text(yaml.safe_dump(grant(world)))
    monkeypatch.setenv(f"AIRFLOW_CONN_{CONN_ID.upper()}", connection(kubeconfig))
    rights = kubernetes.client.RbacAuthorizationV1Api(world.core.api_client)
    job = Running(world, arguments={**SERVE, "awaited": {"worker-0": 1}})
    job.hears("[worker-0] hello from worker-0")
    bindings = rights.list_namespaced_role_binding(world.namespace).items
    for each in bindings:
        rights.delete_namespaced_role_binding(each.metadata.name, world.namespace)
    world.core.delete_namespaced_pod("job-worker-0", world.namespace)
    time.sleep(8)  # the time without rights is the subject
    assert not job.end.done(), job.end.result()
    for each in bindings:
        each.metadata.resource_version = None
        rights.create_namespaced_role_binding(world.namespace, each)
    assert job.end.result(120).state is State.SUCCEEDED
