"""The links of a task in Airflow's UI."""

from pathlib import Path
from types import SimpleNamespace
from urllib.error import HTTPError
from urllib.request import urlopen

import pytest
from airflow.sdk import DAG

from aerotrain.store import open_store
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


def test_an_object_in_aws_is_linked_in_its_console():
    console = "https://s3.console.aws.amazon.com/s3/buckets/bucket?prefix=a%20b%2Fc.html"
    assert browsable("s3://bucket/a b/c.html", {}) == console


@pytest.mark.process
def test_an_object_of_a_private_server_is_shown_by_a_browser_without_a_key(s3):
    s3.make_bucket("linked")
    open_store("s3://linked/a b", s3.environment).put("c.html", b"<p>statistics</p>")
    with urlopen(browsable("s3://linked/a b/c.html", s3.environment)) as page:
        assert (page.headers["Content-Type"], page.read()) == ("text/html", b"<p>statistics</p>")
    with pytest.raises(HTTPError, match="403"):
        urlopen(f"{s3.endpoint}/linked/a%20b/c.html")
