"""Who may see the pages of a run: Airflow's auth manager decides, by the DAG in the path."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from airflow.api_fastapi.app import create_auth_manager, purge_cached_app
from airflow.api_fastapi.auth.managers.simple.user import SimpleAuthManagerUser
from airflow.api_fastapi.core_api.security import get_user
from fastapi.testclient import TestClient

from aerotrain.store import open_store
from aerotrain_airflow.run_page import app as page
from aerotrain_airflow.run_page import store_reads

pytestmark = pytest.mark.usefixtures("airflow_database")

ROUTES = ("runs/{}/one", "data/{}/one", "files/{}/card.html")


@pytest.fixture
def client(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[TestClient]:
    """A user who is signed in, and may read the task instances of the DAG ``own`` alone."""
    monkeypatch.setenv("AIRFLOW__CORE__AUTH_MANAGER", "support.dag_rights.AuthManagerOfOneDag")
    monkeypatch.setenv("AIRFLOW__AEROTRAIN__STORE", tmp_path.as_uri())
    store_reads._store_of_period.cache_clear()
    purge_cached_app()
    create_auth_manager()
    user = SimpleAuthManagerUser(username="viewer", role="VIEWER")
    monkeypatch.setitem(page.app.dependency_overrides, get_user, lambda: user)
    yield TestClient(page.app)
    purge_cached_app()


@pytest.mark.parametrize("route", ROUTES)
def test_a_user_sees_no_page_of_a_dag_that_they_may_not_read(
    client: TestClient, route: str
) -> None:
    assert client.get(f"/{route.format('other')}").status_code == 403
    found: Any = client.get(f"/{route.format('own')}")
    assert found.status_code != 403


def test_a_file_has_its_type_and_no_rights_of_the_user(client: TestClient, tmp_path: Path) -> None:
    store = open_store((tmp_path / "own").as_uri())
    kinds = {"runs/1/card.html": "text/html", "progress.jsonl": "text/plain", "a": "octet-stream"}
    for key, kind in kinds.items():
        store.put(key, b"<script>")
        found = client.get(f"/files/own/{key}")
        assert kind in found.headers["content-type"]
        assert found.headers["content-security-policy"].startswith("sandbox;")
    assert client.get("/files/own/none.html").status_code == 404
    assert client.get("/files/own/%2e%2e/other/card.html").status_code in (400, 404)


@pytest.mark.parametrize("role", ["USER", "VIEWER"])
def test_who_may_trigger_runs_may_suspend_and_resume_a_training(
    client: TestClient, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, role: str
) -> None:
    user = SimpleAuthManagerUser(username="ann", role=role)
    monkeypatch.setitem(page.app.dependency_overrides, get_user, lambda: user)
    run = open_store((tmp_path / "own/runs/one").as_uri())
    run.put("train/job.json", json.dumps({"module": "aerotrain.training.train"}).encode())
    ours = {"sec-fetch-site": "same-origin"}
    for suspended in (True, False):
        form = {"task": "train", "suspended": str(suspended).lower()}
        other = {"sec-fetch-site": "cross-site"}
        assert client.post("/data/own/one", data=form, headers=other).status_code == 403
        found = client.post("/data/own/one", data=form, headers=ours)
        assert found.status_code == (204 if role == "USER" else 403)
        if role == "USER":
            assert json.loads(run.get("train/size.json"))["suspended"] is suspended
    if role == "USER":
        for task in ("none", "../one", "prepare"):
            form = {"task": task, "suspended": "true"}
            assert client.post("/data/own/one", data=form, headers=ours).status_code == 409
