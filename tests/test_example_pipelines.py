"""The small pipelines in dags/, each from its source to an exported model, in this process."""

import json
from datetime import date
from pathlib import Path
from typing import Any

import pytest
from airflow.dag_processing.dagbag import DagBag

from aerotrain.contract.errors import FinalError
from aerotrain.contract.layout import METRICS
from aerotrain.evaluation import evaluate
from aerotrain.evaluation.verdicts import PASS
from aerotrain.serving import export
from aerotrain.standalone import prepare
from aerotrain.store import open_store
from aerotrain.training import train as training
from devtools.days import write_day
from support.training_fixtures import DIGITS, Pipeline

pytestmark = pytest.mark.process

DATA = DIGITS.parent / "data"


@pytest.fixture(scope="module")
def bag() -> DagBag:
    return DagBag(str(DIGITS.parent))


def comparisons(bag: DagBag, dag: str) -> list[dict[str, Any]]:
    """The rules of a DAG's gate that compare with the version that is served."""
    job: Any = bag.dags[dag].get_task("evaluate")
    return [each for each in job.job["arguments"]["gate"] if each["kind"] == "no_worse"]


@pytest.mark.usefixtures("models")
@pytest.mark.parametrize(
    ("module", "source", "rules", "epochs", "threshold"),
    [
        ("clothes", {"kind": "python", "module": "clothes"}, {}, 2, 0.6),
        ("flats", {"kind": "parquet", "url": DATA / "flats.parquet"}, {"key": ["flat"]}, 20, 0.8),
        (
            "reviews",
            {"kind": "jsonl", "url": DATA / "reviews.jsonl"},
            {"split_by": {"way": "stratified", "column": "label"}},
            10,
            0.9,
        ),
    ],
)
def test_a_pipeline_exports_a_model_that_is_good_enough_and_can_judge_its_slices(
    bag: DagBag,
    tmp_path: Path,
    module: str,
    source: dict[str, Any],
    rules: dict[str, Any],
    epochs: int,
    threshold: float,
) -> None:
    source = {name: each.as_uri() if name == "url" else each for name, each in source.items()}
    pipeline = Pipeline(tmp_path, data="")
    data = prepare(pipeline.store, tmp_path / "scratch", source, **rules)
    wanted = {"model": module, "data": data, "epochs": epochs, "hparams": {"learning_rate": 1e-3}}
    model = training.run(pipeline.replica("train", "r", **wanted))
    passed = {"model": model, "data": data, "thresholds": {"accuracy": threshold}}
    evaluate.run(pipeline.replica("evaluate", "r", **passed))
    # Export compares the saved model with the trained one, including the statistics.
    version = export.run(pipeline.replica("export", "r", model=model, data=data))
    assert version.endswith("/1")
    # Each slice of the gate is judged: it has enough records.
    gate = {"gate": comparisons(bag, module), "baseline": version, "first_run": "refuse"}
    again = pipeline.replica("evaluate", "again", model=model, data=data, **gate)
    evaluate.run(again)
    found = json.loads(open_store(again.job.prefix).get(METRICS))
    assert {each["slice"]: each["verdict"] for each in found["verdicts"]} == {
        each["slice"]: PASS for each in found["verdicts"]
    }


@pytest.mark.usefixtures("models")
def test_flats_daily_refuses_a_worse_model_of_a_single_day(bag: DagBag, tmp_path: Path) -> None:
    pipeline = Pipeline(tmp_path, data="")
    write_day(f"{pipeline.store}/flats", date(2026, 11, 23))
    plan: Any = bag.dags["flats_daily"].get_task("prepare.plan")
    rules = {name: plan.job["arguments"][name] for name in ("key", "splits")}
    source = {"kind": "parquet", "url": f"{pipeline.store}/flats"}
    data = prepare(pipeline.store, tmp_path / "scratch", source, **rules)
    good, bad = (
        training.run(
            pipeline.replica(
                "train", run, model="flats", data=data, epochs=epochs, hparams={"learning_rate": r}
            )
        )
        for run, epochs, r in (("good", 20, 1e-3), ("bad", 1, 1e-7))
    )
    version = export.run(pipeline.replica("export", "good", model=good, data=data))
    gate = {"gate": comparisons(bag, "flats_daily"), "baseline": version, "first_run": "refuse"}
    evaluate.run(pipeline.replica("evaluate", "good", model=good, data=data, **gate))
    with pytest.raises(FinalError, match=r"accuracy is .* of the baseline: worse by"):
        evaluate.run(pipeline.replica("evaluate", "bad", model=bad, data=data, **gate))
