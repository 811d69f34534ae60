"""The links of a task in Airflow's UI."""

from pathlib import Path
from types import SimpleNamespace

import pytest
from airflow.sdk import DAG

from aerotrain_airflow.links import EventLogLink, OutputLink, StatisticsLink, browsable
from aerotrain_airflow.params import training_params
from aerotrain_airflow.steps import prepare, train


@pytest.fixture(autouse=True)
def store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    url = (tmp_path / "store").as_uri()
    monkeypatch.setenv("AIRFLOW__AEROTRAIN__STORE", url)
    return url


def links_of(task_id, data="file:///data"):
    with DAG("linked", params=training_params()) as dag:
        train("digits", data)
        prepare("digits")
    task = dag.get_task(task_id)
    ti = SimpleNamespace(dag_id="linked", run_id="run", task_id=task_id, map_index=-1)
    kinds = (OutputLink(), EventLogLink(), StatisticsLink())
    return {each.name: each.get_link(task, ti_key=ti) for each in kinds}


def test_a_training_links_its_output_its_event_log_and_the_statistics_of_its_data(store):
    assert links_of("train") == {
        "Output": f"{store}/linked/runs/run/train/",
        "Event log": f"{store}/linked/runs/run/train/events.json",
        "Statistics": "file:///data/statistics.html",
    }


def test_a_task_has_no_link_to_what_it_does_not_have():
    assert links_of("prepare.plan")["Event log"] == ""
    assert links_of("prepare.plan")["Statistics"] == ""


@pytest.mark.parametrize(
    ("endpoint", "address"),
    [
        ("http://127.0.0.1:9000/", "http://127.0.0.1:9000/bucket/a%20b/c.html"),
        ("", "https://s3.console.aws.amazon.com/s3/buckets/bucket?prefix=a%20b%2Fc.html"),
    ],
)
def test_an_object_in_s3_is_linked_where_a_browser_finds_it(endpoint, address):
    assert browsable("s3://bucket/a b/c.html", endpoint) == address
