"""Tasks whose jobs are pods, each run as Airflow runs it, against the double of the API."""

import asyncio
import json
from pathlib import Path

import pytest
from airflow.dag_processing.dagbag import DagBag

from aerotrain.launch.launcher import Launcher
from aerotrain_airflow.kubernetes import trigger
from aerotrain_airflow.kubernetes.backend import KubernetesBackend
from aerotrain_airflow.kubernetes.plan import PodSettings
from aerotrain_airflow.kubernetes.trigger import JobTrigger
from aerotrain_airflow.operators import job as operator
from devtools.s3_server import S3Server
from support.kubernetes_double import KubernetesDouble
from support.kubernetes_worlds import SECRET, connection, described, make_namespace, person

pytestmark = [pytest.mark.process, pytest.mark.usefixtures("airflow_database")]


@pytest.fixture
def namespace(
    double: KubernetesDouble, s3: S3Server, s3_url: str, monkeypatch: pytest.MonkeyPatch
) -> str:
    """The namespace of the test's pods, with an Airflow that is configured to run them there."""
    namespace = make_namespace(person(Path(double.kubeconfig)), s3.environment)
    store = {
        "conn_type": "aws",
        "login": s3.access_key,
        "password": s3.secret_key,
        "extra": {"endpoint_url": s3.endpoint, "region_name": "us-east-1"},
    }
    for name, value in {
        "AIRFLOW__AEROTRAIN__STORE": s3_url,
        "AIRFLOW__AEROTRAIN__ALLOWED_LAUNCHERS": "kubernetes",
        "AIRFLOW__AEROTRAIN__IMAGE": "aerotrain-training:double",
        "AIRFLOW__AEROTRAIN__NAMESPACE": namespace,
        "AIRFLOW__AEROTRAIN__STORE_SECRET": SECRET,
        "AIRFLOW_CONN_KUBERNETES_DEFAULT": connection(Path(double.kubeconfig)),
        "AIRFLOW_CONN_STORE": json.dumps(store),
    }.items():
        monkeypatch.setenv(name, value)
    return namespace


@pytest.fixture(autouse=True)
def _at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Defer tasks and fire triggers at once, because these tests run no scheduler."""
    monkeypatch.setattr(operator, "DEFER_AFTER", 0.0)
    monkeypatch.setattr(trigger, "FIRE_AFTER", 0.0)


@pytest.fixture(scope="module")
def pipelines() -> DagBag:
    return DagBag(str(Path(__file__).parent / "dags" / "pods.py"))


@pytest.mark.parametrize("dag_id", ["pods", "waiting_pods"])
def test_the_value_and_the_log_lines_of_pods_are_those_of_the_task(
    pipelines: DagBag,
    namespace: str,
    double: KubernetesDouble,
    dag_id: str,
    capfd: pytest.CaptureFixture[str],
) -> None:
    run = pipelines.dags[dag_id].test()
    job = run.get_task_instance("job")
    assert job.state == "success"
    assert job.xcom_pull(task_ids="job")["met"] == ["ps-0", "worker-0"]
    assert "[chief] met ps-0, worker-0" in "".join(capfd.readouterr())
    double.wait_for(lambda: not double.all("pods", namespace))


def test_a_failed_job_has_a_reason_and_leaves_no_pod(
    pipelines: DagBag,
    namespace: str,
    double: KubernetesDouble,
    capfd: pytest.CaptureFixture[str],
) -> None:
    run = pipelines.dags["pods"].test(run_conf={"chief": "fail"})
    assert run.get_task_instance("job").state == "failed"
    assert "the label 7 is outside 0 to 3 (chief, exit code 65)" in "".join(capfd.readouterr())
    double.wait_for(lambda: not double.all("pods", namespace))


def test_a_task_that_is_deferred_beyond_its_timeout_is_ended(
    pipelines: DagBag,
    namespace: str,
    double: KubernetesDouble,
    capfd: pytest.CaptureFixture[str],
) -> None:
    run = pipelines.dags["timed_pods"].test(run_conf={"chief": "serve"})
    assert run.get_task_instance("job").state == "failed"
    assert "ran for longer than its task's execution_timeout" in "".join(capfd.readouterr())
    double.wait_for(lambda: not double.all("pods", namespace))


async def killed_twice(trigger: JobTrigger) -> None:
    """Kill the trigger, and cancel that as Airflow does about a second later."""
    killing = asyncio.create_task(trigger.on_kill())
    await asyncio.sleep(0)  # until it waits for its first request
    killing.cancel()
    await asyncio.wait([killing])
    if others := asyncio.all_tasks() - {asyncio.current_task()}:
        await asyncio.wait(others)


@pytest.mark.parametrize(("holder", "left"), [("try-1", 0), ("try-2", 4)])
def test_killing_a_deferred_task_ends_its_replica_group_and_not_that_of_a_later_try(
    namespace: str, double: KubernetesDouble, holder: str, left: int
) -> None:
    settings = PodSettings(namespace=namespace, image="imagined:1")
    launcher = Launcher(KubernetesBackend(settings, "kubernetes_default", holder))
    handle = launcher.start(launcher.plan(described("s3://bucket"), "try-1"))
    trigger = JobTrigger(handle=handle, conn_id="kubernetes_default", holder="try-1")
    asyncio.run(killed_twice(trigger))
    double.wait_for(lambda: len(double.all("pods", namespace)) == left)
    launcher.stop(handle)


def test_a_dry_run_shows_everything_and_makes_nothing(
    pipelines: DagBag,
    namespace: str,
    double: KubernetesDouble,
    capfd: pytest.CaptureFixture[str],
) -> None:
    run = pipelines.dags["pods"].test(run_conf={"dry_run": True})
    assert run.get_task_instance("check").state == "success"
    assert run.get_task_instance("job").state == "skipped"
    said = "".join(capfd.readouterr())
    assert said.count("kind: Pod\n") == 3
    assert not double.all("pods", namespace)
    assert not double.all("configmaps", namespace)


def test_a_missing_permission_is_named_before_anything_is_made(
    pipelines: DagBag,
    namespace: str,
    double: KubernetesDouble,
    capfd: pytest.CaptureFixture[str],
) -> None:
    double.deny("get", "pods/log")
    try:
        run = pipelines.dags["pods"].test()
    finally:
        double.allow("get", "pods/log")
    assert run.get_task_instance("check").state == "failed"
    assert f"Airflow may not get pods/log in namespace {namespace}" in "".join(capfd.readouterr())
    assert not double.all("configmaps", namespace)
