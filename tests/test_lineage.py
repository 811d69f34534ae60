"""The lineage of tasks, as OpenLineage's provider asks the operators for it."""

import json
from pathlib import Path
from types import SimpleNamespace
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
        "plan": ([source], [data]),
        "partition": ([source], [data]),
        "finalize": ([source], [data]),
        "train": ([data], [model]),
        "evaluate": ([model, data, before], ["file runs/one/evaluate/metrics.json"]),
        "export": ([model, data], [version]),
        "serve_check": ([version], []),
        "promote": ([version], [alias]),
        "rollback": ([before], [alias]),
        "predict.plan": ([source, version, alias], [predictions]),
        "predict.partition": ([source, version], [predictions]),
        "predict.finalize": ([source, version], [predictions]),
    }


def test_a_data_set_has_its_schema_its_fingerprint_and_its_statistics(run: EndedRun) -> None:
    [written] = completed(run.tasks()["finalize"])["outputs"]
    facets = written["facets"]
    columns = [(each["name"], each["type"]) for each in facets["schema"]["fields"]]
    assert columns == [("area", "float32"), ("pixels", "uint8[8, 8]")]
    assert facets["version"]["datasetVersion"] == "f1"
    quality = facets["dataQualityMetrics"]
    assert (quality["rowCount"], quality["bytes"], quality["fileCount"]) == (100, 10000, 3)
    area = quality["columnMetrics"]["area"]
    assert (area["nullCount"], area["distinctCount"], area["min"]) == (3, 90, 20.0)
    assert area["quantiles"] == {"0.0": 20.0, "0.25": 40.0, "0.5": 70.0}
    assert "max" not in area  # JSON has no infinity
    counts = written["outputFacets"]["outputStatistics"]
    assert (counts["rowCount"], counts["size"], counts["fileCount"]) == (100, 10000, 3)
    [read] = completed(run.tasks()["train"])["inputs"]
    assert read["facets"]["schema"] == facets["schema"]
    assert read["inputFacets"]["inputStatistics"]["rowCount"] == 100


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


def test_predictions_have_their_columns_and_counts(run: EndedRun) -> None:
    [written] = completed(run.tasks()["predict.finalize"])["outputs"]
    assert [each["name"] for each in written["facets"]["schema"]["fields"]] == ["flat", "price"]
    assert written["outputFacets"]["outputStatistics"]["rowCount"] == 100


def test_a_task_that_failed_or_started_nothing_has_written_nothing(run: EndedRun) -> None:
    tasks: Any = run.tasks()
    for folder in (run.data, run.predictions):
        open_store(folder).delete("manifest.json")
    for name in ("partition", "finalize", "predict.finalize"):
        failed = tasks[name].task.get_openlineage_facets_on_failure(EndedTask(tasks[name].task))
        assert (failed.inputs[0].name, failed.outputs) == ("flats", [])
    ti = tasks["train"]
    ti.task.is_dry_run = True
    shown = completed(ti)
    assert (shown["inputs"], shown["outputs"]) == ([], [])


def test_the_dag_file_is_found_at_the_version_of_its_bundle(run: EndedRun) -> None:
    ti = run.tasks()["train"]
    page = "https://git.example/flats/tree/{version}/{subdir}"
    ti.bundle_instance = SimpleNamespace(
        version="4f2c", subdir="dags", view_url_template=lambda: page
    )
    facet = completed(ti)["job_facets"]["sourceCodeLocation"]
    assert facet["url"] == "https://git.example/flats/tree/4f2c/dags"
    assert facet["version"] == "4f2c"


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
