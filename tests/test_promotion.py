"""The steps by which Airflow promotes a version of a pipeline, and rolls back."""

from datetime import UTC, datetime, timedelta
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from airflow.sdk import Asset
from airflow.sdk.exceptions import AirflowFailException, AirflowSkipException
from airflow.sdk.execution_time.context import OutletEventAccessors

from aerotrain.serving.alias import alias_of
from aerotrain.store import Store, open_store
from aerotrain_airflow.operators.release import PromoteOperator, RollbackOperator

SERVED = Asset("flats-model")


@pytest.fixture
def versions(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Store:
    """The folder of versions of the DAG ``flats``, which has three."""
    monkeypatch.setenv("AIRFLOW__AEROTRAIN__STORE", tmp_path.as_uri())
    store = open_store(f"{tmp_path.as_uri()}/flats/serving")
    for version in (1, 2, 3):
        store.put(f"{version}/manifest.json", b"{}")
    return store


@pytest.fixture
def context() -> Any:
    run = SimpleNamespace(
        dag_id="flats",
        run_id="manual",
        triggering_user_name="ann",
        data_interval_end=None,
        logical_date=None,
        run_after=datetime(2026, 11, 24, tzinfo=UTC),
    )
    return {
        "ti": SimpleNamespace(dag_id="flats"),
        "dag_run": run,
        "outlet_events": OutletEventAccessors(),
    }


def test_a_version_is_promoted_by_its_url_with_the_run_and_the_metrics(
    versions: Store, context: Any
) -> None:
    url, metrics = f"{versions.url}/2", {"auc": 0.9}
    given = {"version": url, "metrics": metrics, "outlets": [SERVED]}
    assert PromoteOperator(task_id="promote", **given).execute(context) == url
    alias = alias_of(versions)
    assert alias is not None
    assert (alias.version, alias.history[0].by) == (2, "flats/manual of ann")
    assert alias.history[0].metrics == metrics
    event = context["outlet_events"][SERVED].extra
    assert event == {"version": 2, "url": url, "action": "promote", "metrics": metrics}


def test_a_number_is_a_version_of_the_named_pipeline_and_a_rollback_returns(
    versions: Store, context: Any
) -> None:
    context["ti"].dag_id = "serving"
    for version in (1, 3):
        PromoteOperator(task_id="promote", version=version, pipeline="flats").execute(context)
    rollback = RollbackOperator(task_id="rollback", pipeline="flats", reason="slow")
    assert rollback.execute(context) == f"{versions.url}/1"


def test_a_run_of_an_earlier_date_leaves_what_is_served_by_a_run_of_a_later_one(
    versions: Store, context: Any
) -> None:
    def promoted(version: int, day: int | None, **more: Any) -> str:
        context["dag_run"].logical_date = day and datetime(2026, 11, day, tzinfo=UTC)
        given = {"version": f"{versions.url}/{version}", **more}
        return PromoteOperator(task_id="promote", **given).execute(context)

    assert promoted(2, 20).endswith("/2")
    with pytest.raises(AirflowSkipException, match=r"until 2026-11-19.*version 2, which is served"):
        promoted(3, 19)
    assert promoted(1, 21).endswith("/1")  # exported before it, of later data
    assert promoted(3, 19, older=True).endswith("/3")
    with pytest.raises(AirflowFailException, match="version 2 is older than version 3"):
        PromoteOperator(task_id="promote", version=2, pipeline="flats").execute(context)
    context["dag_run"].data_interval_end = datetime(2026, 11, 18, tzinfo=UTC)
    with pytest.raises(AirflowSkipException, match="until 2026-11-18"):
        promoted(2, 30)


def test_a_backfill_leaves_what_a_run_without_a_date_or_a_person_has_promoted(
    versions: Store, context: Any
) -> None:
    def promoted(version: int | str, **run: Any) -> str:
        vars(context["dag_run"]).update({"logical_date": None, **run})
        return PromoteOperator(task_id="promote", version=version, pipeline="flats").execute(
            context
        )

    yesterday = datetime.now(UTC) - timedelta(days=1)
    promoted(f"{versions.url}/1")
    with pytest.raises(AirflowSkipException, match=r"version 1, which is served, until 2026-11-24"):
        promoted(f"{versions.url}/2", logical_date=datetime(2026, 11, 23, tzinfo=UTC))
    with pytest.raises(AirflowSkipException, match=r"until 2026-11-23T23:59"):
        promoted(f"{versions.url}/2", run_after=datetime(2026, 11, 23, 23, 59, tzinfo=UTC))
    promoted(2)
    with pytest.raises(AirflowSkipException, match="version 2, which is served"):
        promoted(f"{versions.url}/3", logical_date=yesterday)
    assert promoted(f"{versions.url}/3", logical_date=yesterday + timedelta(days=2)).endswith("/3")


@pytest.mark.parametrize(
    ("version", "message"),
    [
        (None, "no version is given: give the number of a version"),
        (9, "no complete version 9; it has 1, 2, 3"),
        ("x", "'x' is none: give the number"),
    ],
)
def test_what_is_no_version_fails_without_a_retry(
    versions: Store, context: Any, version: Any, message: str
) -> None:
    with pytest.raises(AirflowFailException, match=message):
        PromoteOperator(task_id="promote", version=version, pipeline="flats").execute(context)
    assert alias_of(versions) is None


@pytest.mark.parametrize("operator", [PromoteOperator, RollbackOperator])
def test_a_pipeline_that_does_not_exist_is_named_with_those_that_do(
    versions: Store, context: Any, operator: Any
) -> None:
    given = {"version": 1} if operator is PromoteOperator else {}
    with pytest.raises(
        AirflowFailException, match="'flat' has exported no version, did you mean 'flats'"
    ):
        operator(task_id="change", pipeline="flat", **given).execute(context)
