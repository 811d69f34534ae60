"""The links of a task in Airflow's UI."""

from pathlib import Path
from types import SimpleNamespace

import pytest
from airflow.sdk import DAG

from aerotrain_airflow.operators.links import EventLogLink, StatisticsLink, with_addresses
from aerotrain_airflow.params import training_params
from aerotrain_airflow.settings import Settings
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
    kinds = (EventLogLink(), StatisticsLink())
    return {each.name: each.get_link(task, ti_key=ti) for each in kinds}


def test_a_training_links_its_event_log_and_the_statistics_of_its_data(store, monkeypatch):
    assert links_of("train", f"{store}/linked/datasets/a b") == {
        "Event log": "/aerotrain/files/linked/runs/run/train/events.json",
        "Statistics": "/aerotrain/files/linked/datasets/a%20b/statistics.html",
    }
    monkeypatch.setenv("AIRFLOW__API__BASE_URL", "https://airflow.example/team")
    found = links_of("train")
    assert found["Event log"].startswith("https://airflow.example/team/aerotrain/files/linked/")
    assert found["Statistics"] == "file:///data/statistics.html"  # not in the pipeline's store


def test_a_task_has_no_link_to_what_it_does_not_have():
    assert links_of("prepare.plan") == {"Event log": "", "Statistics": ""}


def test_a_message_that_names_an_object_of_the_pipeline_has_its_address(store, monkeypatch):
    settings = Settings.read()
    text = f"rejected; {store}/linked/datasets/1/quarantine/0.jsonl lists them, {store}/linked/x/"
    assert with_addresses(text, "linked", settings) == text  # Airflow does not know its address
    monkeypatch.setenv("AIRFLOW__API__BASE_URL", "http://127.0.0.1:8080")
    assert with_addresses(text, "linked", settings) == (
        f"{text}\nin a browser:\n"
        "http://127.0.0.1:8080/aerotrain/files/linked/datasets/1/quarantine/0.jsonl"
    )
    assert with_addresses("epochs is 0", "linked", settings) == "epochs is 0"
