"""Who may see the pages of a run: Airflow's auth manager decides, by the DAG in the path."""

from collections.abc import Iterator
from typing import Any

import pytest
from airflow.api_fastapi.app import create_auth_manager, purge_cached_app
from airflow.api_fastapi.auth.managers.simple.user import SimpleAuthManagerUser
from airflow.api_fastapi.core_api.security import get_user
from fastapi.testclient import TestClient

from aerotrain_airflow.run_page.app import app

pytestmark = pytest.mark.usefixtures("airflow_database")

ROUTES = ("runs/{}/one", "data/{}/one", "files/{}/serving/")


@pytest.fixture
def client(monkeypatch: pytest.MonkeyPatch) -> Iterator[TestClient]:
    """A user who is signed in, and may read the task instances of the DAG ``own`` alone."""
    monkeypatch.setenv("AIRFLOW__CORE__AUTH_MANAGER", "support.dag_rights.AuthManagerOfOneDag")
    purge_cached_app()
    create_auth_manager()
    user = SimpleAuthManagerUser(username="viewer", role="VIEWER")
    monkeypatch.setitem(app.dependency_overrides, get_user, lambda: user)
    yield TestClient(app)
    purge_cached_app()


@pytest.mark.parametrize("route", ROUTES)
def test_a_user_sees_no_page_of_a_dag_that_they_may_not_read(
    client: TestClient, route: str
) -> None:
    assert client.get(f"/{route.format('other')}").status_code == 403
    found: Any = client.get(f"/{route.format('own')}")
    assert found.status_code != 403
