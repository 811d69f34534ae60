"""The digits pipeline with a pod for every replica: real Airflow components, a real Kubernetes."""

import os
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import kubernetes.client
import kubernetes.utils
import pytest

from chaos.dag_runs import restart
from devtools.home import Home
from devtools.stack import Stack, running_stack
from support.airflow_runs import Runs, until
from support.kubernetes_worlds import (
    SECRET,
    connection,
    forwarded_to_pods,
    given,
    make_namespace,
    person,
)

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(900)]

PROJECT = Path(__file__).parent.parent
#: The training's resource requests: a small node has room for all four pods.
ROLES = ("chief", "worker", "ps", "input")
SMALL = {role: {"cpu": 0.2, "memory": "1500Mi"} for role in ROLES}


@pytest.fixture(scope="module")
def core() -> kubernetes.client.CoreV1Api:
    return person(Path(given("KUBECONFIG")))


@pytest.fixture(scope="module")
def project(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """This clone with the test's DAGs in addition to its own."""
    project = tmp_path_factory.mktemp("project")
    (project / "dags").mkdir()
    own = (PROJECT / "tests" / "dags" / name for name in ("crowd.py", "served.py"))
    for path in (*(PROJECT / "dags").iterdir(), *own):
        (project / "dags" / path.name).symlink_to(path)
    for folder in ("tasks", "plugins"):
        (project / folder).symlink_to(PROJECT / folder)
    (project / "jobs").symlink_to(PROJECT / "tests" / "jobs")
    return project


@pytest.fixture(scope="module")
def stack(
    tmp_path_factory: pytest.TempPathFactory, project: Path, core: kubernetes.client.CoreV1Api
) -> Iterator[Stack]:
    """An Airflow that may run one task at a time, and whose replicas are pods."""
    home = Home(tmp_path_factory.mktemp("home"))
    namespace = make_namespace(core, {})
    settings = {
        "AIRFLOW__CORE__PARALLELISM": "1",
        "AIRFLOW__AEROTRAIN__LAUNCHER": "kubernetes",
        "AIRFLOW__AEROTRAIN__IMAGE": given("AEROTRAIN_TEST_IMAGE"),
        "AIRFLOW__AEROTRAIN__NAMESPACE": namespace,
        "AIRFLOW__AEROTRAIN__STORE_SECRET": SECRET,
        "AIRFLOW_CONN_KUBERNETES_DEFAULT": connection(Path(given("KUBECONFIG"))),
    }
    with pytest.MonkeyPatch.context() as patch:
        for name, value in settings.items():
            patch.setenv(name, value)
        with (
            running_stack(home, project) as running,
            forwarded_to_pods(running.s3) as environment,
        ):
            core.patch_namespaced_secret(SECRET, namespace, {"stringData": environment})
            running.wait_for_dag("digits")
            yield running
    core.delete_namespace(namespace)


@pytest.fixture(scope="module")
def digits(stack: Stack) -> Runs:
    return Runs(stack, "digits")


@pytest.fixture(scope="module")
def namespace(stack: Stack) -> str:
    return os.environ["AIRFLOW__AEROTRAIN__NAMESPACE"]


def uids(core: kubernetes.client.CoreV1Api, namespace: str, *, deleted: bool = True) -> set[str]:
    """The uids of the pods that train now; those that are being deleted only with ``deleted``."""
    pods = core.list_namespaced_pod(namespace, label_selector="aerotrain/job").items
    return {
        pod.metadata.uid
        for pod in pods
        if pod.metadata.name.startswith("train-")
        and (deleted or not pod.metadata.deletion_timestamp)
    }


@pytest.mark.parametrize(
    ("conf", "replicas"),
    [
        ({}, ("chief", "worker-0", "worker-1", "ps-0")),
        ({"strategy": "one_device", "data_workers": 2}, ("chief", "input-0", "input-1")),
    ],
)
def test_the_pipeline_trains_evaluates_and_exports_on_pods(
    digits: Runs,
    core: kubernetes.client.CoreV1Api,
    namespace: str,
    conf: dict[str, Any],
    replicas: tuple[str, ...],
) -> None:
    run = digits.trigger({"resources": SMALL, **conf})
    assert digits.end_of(run) == "success", digits.errors(run)
    assert digits.result(run, "evaluate")["accuracy"] >= 0.9
    lines = digits.log(run, "train").splitlines()
    for replica in replicas:
        assert any(f"[{replica}] " in line for line in lines)
    told = [line for line in lines if "progress step=" in line]
    assert told
    assert len(told) == len(set(told))
    until("the end of all pods", lambda: not uids(core, namespace))


def test_an_exported_version_is_checked_in_a_server_beside_the_replica_and_promoted(
    stack: Stack, digits: Runs
) -> None:
    run = digits.trigger({"resources": SMALL, "strategy": "one_device", "epochs": 2})
    assert digits.end_of(run) == "success", digits.errors(run)
    served = Runs(stack, "served")
    stack.wait_for_dag("served")
    version = digits.result(run, "export")
    check = served.trigger({"version": version, "resources": SMALL})
    assert served.end_of(check) == "success", served.errors(check)
    assert served.result(check, "serve_check")["requests"] == 100  # 50 a second for 2 seconds
    assert "aerotrain serve" not in served.log(check, "serve_check"), "that is another server"
    assert served.result(check, "promote") == version


def test_ten_jobs_run_at_once_although_only_one_task_may_run(stack: Stack) -> None:
    crowd = Runs(stack, "crowd")
    stack.wait_for_dag("crowd")
    run = crowd.trigger({})
    assert crowd.end_of(run) == "success", crowd.errors(run)
    assert crowd.result(run, "job_0") == 10


def test_the_pods_of_a_deferred_training_marked_failed_are_deleted_within_10_seconds(
    digits: Runs, core: kubernetes.client.CoreV1Api, namespace: str
) -> None:
    run = digits.trigger({"resources": SMALL, "epochs": 100_000})
    until("a line of progress", lambda: "progress step=" in digits.log(run, "train"))
    assert digits.states(run)["train"] == "deferred"
    digits.api.fail_task("digits", run, "train")
    marked = time.monotonic()
    until("the deletion of all pods", lambda: not uids(core, namespace, deleted=False))
    assert time.monotonic() - marked < 10
    until("the end of all pods", lambda: not uids(core, namespace))


def test_killing_triggerer_and_scheduler_does_not_disturb_the_training(
    digits: Runs, core: kubernetes.client.CoreV1Api, namespace: str
) -> None:
    run = digits.trigger({"resources": SMALL, "epochs": 300})
    until("a line of progress", lambda: "progress step=" in digits.log(run, "train"))
    before = uids(core, namespace)
    for component in digits.stack.components:
        if component.name in ("triggerer", "scheduler"):
            restart(component)
    assert uids(core, namespace) == before

    def told() -> list[str]:
        return [line for line in digits.log(run, "train").splitlines() if "progress step=" in line]

    until_then = told()
    assert digits.end_of(run) == "success", digits.errors(run)
    lines = told()
    assert {line for line in lines if lines.count(line) > 1} <= set(until_then)
