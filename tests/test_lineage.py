"""The lineage of tasks, as OpenLineage's provider asks the operators for it."""

import json
from pathlib import Path
from typing import Any

import pytest
from openlineage.client.serde import Serde

from aerotrain.store import open_store
from aerotrain_airflow.tracking.lineage import name_of
from support.ended_tasks import EndedRun, EndedTask


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> EndedRun:
    monkeypatch.setenv("AIRFLOW__AEROTRAIN__STORE", tmp_path.as_uri())
    run = EndedRun(tmp_path.as_uri())
    run.write()
    return run


def completed(ti: EndedTask) -> Any:
    """The lineage of a task that succeeded, as JSON."""
    lineage: Any = ti.task
    return json.loads(Serde.to_json(lineage.get_openlineage_facets_on_complete(ti)))


def names(datasets: list[dict[str, Any]], run: EndedRun) -> list[str]:
    root = run.store.removeprefix("file://") + "/flats/"
    return [f"{each['namespace']} {each['name'].removeprefix(root)}" for each in datasets]


def test_each_step_reads_what_an_earlier_one_has_written(run: EndedRun) -> None:
    edges = {
        name: (names(found["inputs"], run), names(found["outputs"], run))
        for name, found in ((name, completed(ti)) for name, ti in run.tasks().items())
    }
    source, data, model = "s3://lake flats", "file datasets/f1", "file runs/one/train"
    version, alias = "file serving/2", "file serving/aliases/serving.json"
    before, predictions = "file serving/1", "file predictions/p1"
    assert edges == {
        "plan": ([], []),
        "partition": ([], []),
        "finalize": ([source], [data]),
        "train": ([data], [model]),
        "evaluate": ([model, data, before], ["file runs/one/evaluate/metrics.json"]),
        "export": ([model, data], [version]),
        "serve_check": ([version], []),
        "promote": ([version], [alias]),
        "rollback": ([before], [alias]),
        "predict.plan": ([], []),
        "predict.partition": ([], []),
        "predict.finalize": ([source, version], [predictions]),
    }


@pytest.mark.parametrize(
    ("task", "columns", "version", "counts"),
    [
        ("finalize", {"area": "float32", "pixels": "uint8[8, 8]"}, "f1", (100, 10000, 3)),
        ("predict.finalize", {"flat": "int64", "price": "float"}, "p1", (100, 4000, 1)),
    ],
)
def test_what_was_written_by_partitions_has_its_columns_its_fingerprint_and_counts(
    run: EndedRun, task: str, columns: dict[str, str], version: str, counts: tuple[int, ...]
) -> None:
    [written] = completed(run.tasks()[task])["outputs"]
    facets, statistics = written["facets"], written["outputFacets"]["outputStatistics"]
    assert {each["name"]: each["type"] for each in facets["schema"]["fields"]} == columns
    assert facets["version"]["datasetVersion"] == version
    found = (statistics["rowCount"], statistics["size"], statistics["fileCount"])
    assert found == counts


def test_a_model_has_its_metrics_and_its_version(run: EndedRun) -> None:
    tasks = run.tasks()
    versions = {}
    for name, metrics in {
        "train": {"loss": 0.5, "accuracy": 0.9},
        "evaluate": {"accuracy": 0.88},
        "export": {"loss": 0.5, "accuracy": 0.9},
        "promote": {"accuracy": 0.88},
    }.items():
        [written] = completed(tasks[name])["outputs"]
        assert written["facets"]["aerotrain_model"]["metrics"] == metrics
        versions[name] = written["facets"].get("version", {}).get("datasetVersion")
    assert len(versions.pop("train")) == 16
    assert versions == {"evaluate": None, "export": "2", "promote": "2"}


def test_a_task_that_failed_or_started_nothing_has_written_nothing(run: EndedRun) -> None:
    tasks: Any = run.tasks()
    for folder in (run.data, run.predictions):
        open_store(folder).delete("manifest.json")
    for name in ("finalize", "predict.finalize"):
        failed = tasks[name].task.get_openlineage_facets_on_failure(EndedTask(tasks[name].task))
        assert (failed.inputs[0].name, failed.outputs) == ("flats", [])
    ti = tasks["train"]
    ti.task.is_dry_run = True
    shown = completed(ti)
    assert (shown["inputs"], shown["outputs"]) == ([], [])


@pytest.mark.parametrize(
    ("url", "name"),
    [
        ("s3://bucket/a/b.json", ("s3://bucket", "a/b.json")),
        ("s3://bucket/a/dt=2026-11-24/", ("s3://bucket", "a/dt=2026-11-24")),
        ("s3://bucket", ("s3://bucket", "/")),
        ("file:///data/a%20b/", ("file", "/data/a b")),
    ],
)
def test_names_are_those_of_the_specification(url: str, name: tuple[str, str]) -> None:
    assert name_of(url) == name
