"""The page of models in Airflow's UI: what it shows, and who may promote and roll back by it."""

import json
import os
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from airflow.api_fastapi.app import create_auth_manager, purge_cached_app
from airflow.api_fastapi.auth.managers.simple.user import SimpleAuthManagerUser
from airflow.api_fastapi.core_api.security import get_user
from airflow.models import DagModel, Log
from airflow.models.dagbundle import DagBundleModel
from airflow.providers.openlineage.plugins.listener import get_openlineage_listener
from airflow.utils.session import create_session
from fastapi.testclient import TestClient
from sqlalchemy import select

from aerotrain.serving.alias import alias_of, promote
from aerotrain.store import Store, open_store
from aerotrain_airflow.run_page import store_reads
from aerotrain_airflow.run_page.app import app
from aerotrain_airflow.tracking.mlflow_runs import client_of

pytestmark = pytest.mark.usefixtures("airflow_database")

SignIn = Callable[[str], TestClient]

#: What a browser sends with a form of the page itself.
OURS = {"sec-fetch-site": "same-origin", "origin": "http://testserver"}


@pytest.fixture
def store(store_url: str) -> Store:
    """The store of the DAG ``own``, with three versions; and another DAG with one."""
    pipelines = open_store(store_url)
    for dag, numbers in (("own", (1, 2, 3)), ("other", (1,))):
        for number in numbers:
            _exported(pipelines.child(dag), number)
    return pipelines.child("own")


def _exported(store: Store, number: int) -> None:
    """The objects that a run leaves of which the page shows something."""
    run = f"runs/manual__{number}"
    model, data = f"{store.url}/{run}/train/model.json", f"{store.url}/datasets/4c2e"
    start = {"model": f"{store.url}/runs/manual__{number - 1}/train"} if number > 1 else None
    evaluation = {
        "metrics": {"accuracy": 0.9 + number / 100, "<i>": "NaN"},
        "candidate": {"model": model},
    }
    documents = {
        f"{run}/train/model.json": {"started_from": start},
        f"{run}/evaluate/metrics.json": evaluation,
        f"serving/claims/{number}.json": {"run": f"manual__{number}"},
        f"serving/{number}/manifest.json": {"about": {"model": model, "data": data}},
    }
    for key, document in documents.items():
        store.put(key, json.dumps(document).encode())


@pytest.fixture
def sign_in(store: Store, monkeypatch: pytest.MonkeyPatch) -> Iterator[SignIn]:
    """A client as a user of that role, of an Airflow with both DAGs."""
    monkeypatch.setenv("AIRFLOW__CORE__AUTH_MANAGER", "support.dag_rights.AuthManagerOfOneDag")
    monkeypatch.setenv("AIRFLOW__AEROTRAIN__STORE", store.url.rpartition("/")[0])
    if store.url.startswith("s3://"):
        endpoint = {"endpoint_url": os.environ["AWS_ENDPOINT_URL"]}
        connection = {
            "conn_type": "aws",
            "login": os.environ["AWS_ACCESS_KEY_ID"],
            "password": os.environ["AWS_SECRET_ACCESS_KEY"],
            "extra": endpoint,
        }
        monkeypatch.setenv("AIRFLOW_CONN_STORE", json.dumps(connection))
    store_reads._store_of_period.cache_clear()
    store_reads.answers._answers.clear()
    purge_cached_app()
    create_auth_manager()
    with create_session() as session:
        session.merge(DagBundleModel(name="tests"))
        session.flush()
        for dag in ("own", "other"):
            session.merge(DagModel(dag_id=dag, bundle_name="tests"))

    def sign_in(role: str) -> TestClient:
        user = SimpleAuthManagerUser(username="ann", role=role)
        monkeypatch.setitem(app.dependency_overrides, get_user, lambda: user)
        return TestClient(app)

    yield sign_in
    purge_cached_app()
    with create_session() as session:
        for dag in ("own", "other"):
            session.delete(session.get(DagModel, dag))


def test_the_page_lists_the_pipelines_that_the_user_may_read(sign_in: SignIn) -> None:
    page = sign_in("VIEWER").get("/models").text
    assert 'href="models/own"' in page
    assert "accuracy 0.93" in page
    assert "other" not in page


def test_a_pipeline_has_its_versions_with_metrics_card_and_what_they_were_made_of(
    sign_in: SignIn, store: Store
) -> None:
    promote(store.child("serving"), 2, by="digits/manual__2", reason="<b>first</b>")
    viewer = sign_in("VIEWER")
    page = viewer.get("/models/own").text
    [served] = [row for row in page.split("<tr") if 'class="served"' in row]
    for shown in (
        "2 <b>served</b>",
        "<td>0.92</td>",
        "<td>nan</td>",
        'href="../files/own/runs/manual__2/evaluate/card.html"',
        '/dags/own/runs/manual__2" target="_blank">manual__2',
        'href="../files/own/datasets/4c2e/statistics.html"',
        "<td>runs/manual__1/train</td>",
    ):
        assert shown in served
    assert re.search(r'<time datetime="[^"]+\+00:00">[-0-9]+ [:0-9]+ UTC</time>', served)
    assert "&lt;b&gt;first&lt;/b&gt;" in page
    assert "<i>" not in page
    assert "<form" not in page
    assert viewer.get("/models/other").status_code == 403


def test_a_pipeline_without_a_version_has_nothing_to_promote(sign_in: SignIn, store: Store) -> None:
    for number in (1, 2, 3):
        store.delete(f"serving/{number}/manifest.json")
    user = sign_in("USER")
    page = user.get("/models/own").text
    assert "No version is exported yet." in page
    assert "<form" not in page
    assert "<table" not in page
    assert "No pipeline that you may see has exported a version yet." in user.get("/models").text


def test_a_version_is_promoted_and_rolled_back_with_a_reason_and_the_user(
    sign_in: SignIn, store: Store
) -> None:
    versions, user = store.child("serving"), sign_in("USER")

    def send(**form: Any) -> Any:
        return user.post("/models/own", data=form, headers=OURS)

    page = send(version=2, reason="better")
    assert page.url.path == "/models/own"
    assert "Version 2 is served now" in page.text
    assert "Version 3 is served now" in send(version=3, reason="still better").text
    refused = send(version=1, reason="oldest")
    assert refused.status_code == 409
    assert "Nothing was changed: version 1 is older than version 3" in refused.text
    assert "<option selected>1</option>" in refused.text
    assert 'value="oldest"' in refused.text
    assert "no complete version 9" in send(version=9, reason="x").text
    assert "no reason is given" in send(reason=" ").text
    page = send(reason="slow")
    assert "Version 2 is served now" in page.text
    assert send(version=1, reason="oldest", older="true").status_code == 200
    alias = alias_of(versions)
    assert alias is not None
    changes = [(each.action, each.version, each.by, each.reason) for each in alias.history]
    assert changes == [
        ("promote", 2, "ann", "better"),
        ("promote", 3, "ann", "still better"),
        ("rollback", 2, "ann", "slow"),
        ("promote", 1, "ann", "oldest"),
    ]
    with create_session() as session:
        logged = session.scalars(select(Log).where(Log.event == "change_served_version")).all()
    assert {(each.dag_id, each.owner) for each in logged} == {("own", "ann")}


@pytest.mark.parametrize(
    ("role", "headers"),
    [
        ("VIEWER", OURS),
        ("USER", {"sec-fetch-site": "same-site", "origin": "http://other.testserver"}),
        ("USER", {"sec-fetch-site": "cross-site", "origin": "null"}),
        ("USER", {"origin": "http://other"}),
    ],
)
def test_who_may_not_trigger_the_dag_and_forms_of_other_sites_change_nothing(
    sign_in: SignIn, store: Store, role: str, headers: dict[str, str]
) -> None:
    form = {"version": "1", "reason": "x"}
    answer = sign_in(role).post("/models/own", data=form, headers=headers)
    assert answer.status_code == 403
    assert alias_of(store.child("serving")) is None


@pytest.mark.process
def test_a_change_by_the_page_is_recorded_in_mlflow_and_emitted_as_lineage(
    sign_in: SignIn, store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    uri, events = f"sqlite:///{tmp_path}/mlflow.db", tmp_path / "events"
    client = client_of(uri)
    client.search_experiments()  # it creates the database, which takes longer than is waited for
    transport = {"type": "file", "log_file_path": str(events), "append": True}
    monkeypatch.setenv("AIRFLOW__AEROTRAIN__MLFLOW", uri)
    monkeypatch.setenv("AIRFLOW__OPENLINEAGE__TRANSPORT", json.dumps(transport))
    get_openlineage_listener.cache_clear()
    for form in ({"version": 2, "reason": "better"}, {"version": 3, "reason": "best"}, {}):
        sign_in("USER").post("/models/own", data={"reason": "slow", **form}, headers=OURS)

    version = client.get_model_version_by_alias("own", "serving")
    assert version.source == f"{store.url}/serving/2"
    emitted = [json.loads(line) for line in events.read_text().splitlines()]
    assert [event["job"]["name"] for event in emitted] == ["own.models_page"] * 3
    assert emitted[-1]["inputs"][0]["name"].endswith("own/serving/2")
    assert emitted[-1]["outputs"][0]["name"].endswith("own/serving/aliases/serving.json")
