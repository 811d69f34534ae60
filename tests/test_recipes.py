"""The recipes of docs/recipes.md: each DAG is parsed, and its steps run in this process."""

import csv
import json
import re
import sys
from collections.abc import Callable, Mapping
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tensorflow as tf
from airflow.dag_processing.dagbag import DagBag

from aerotrain.evaluation import evaluate
from aerotrain.serving import export
from aerotrain.standalone import prepare
from aerotrain.training import train as training
from aerotrain_airflow.operators.job import JobOperator
from support.training_fixtures import Pipeline

pytestmark = pytest.mark.process

TEXT = (Path(__file__).parent.parent / "docs" / "recipes.md").read_text()

#: The files of the recipes, by their paths below the folder of DAGs.
FILES = dict(re.findall(r"```python\n# (\S+)\n(.*?)```", TEXT, re.DOTALL))

HEAD = """
from airflow.sdk import dag, task, task_group
from aerotrain_airflow.params import RunParam, training_params
from aerotrain_airflow.steps import at_least, at_most, evaluate, export, prepare, train

@dag(schedule=None, params=training_params())
"""

RANDOM = np.random.default_rng(0)


def write_comments(folder: Path) -> None:
    (folder / "comments").mkdir()
    (folder / "models" / "words.txt").write_text("good\nbad\nday\n")
    texts = [("good day", 1), ("bad day", 0), ("good", 1), ("so bad", 0)] * 20
    lines = [
        json.dumps({"id": n, "text": f"{t} {n}", "label": y}) for n, (t, y) in enumerate(texts)
    ]
    (folder / "comments" / "all.jsonl").write_text("\n".join(lines))


def write_birds(folder: Path) -> None:
    for label in ("robin", "wren"):
        (folder / "birds" / label).mkdir(parents=True)
        for number in range(20):
            image = RANDOM.integers(0, 256, (40, 30, 3), np.uint8)
            content = tf.io.encode_jpeg(image).numpy()
            (folder / "birds" / label / f"{number}.jpg").write_bytes(content)


def write_load(folder: Path) -> None:
    (folder / "load").mkdir()
    hours = [datetime(2025, 12, 25, tzinfo=UTC) + timedelta(hours=hour) for hour in range(24 * 20)]
    for month in ("2025-12", "2026-01"):
        rows = [(hour.isoformat(), 100 + hour.hour) for hour in hours if str(hour)[:7] == month]
        write_csv(folder / "load" / f"{month}.csv", ["hour", "load"], rows)


def write_offers(folder: Path) -> None:
    rows = [(n, 40.5 + n, 1 + n % 5, 1000.5 + 9 * n, n % 2) for n in range(80)]
    write_csv(folder / "offers.csv", ["id", "area", "rooms", "price", "sold"], rows)


def write_payments(folder: Path) -> None:
    rows = [(n, 10.5 + n, 20 + n % 50, int(n % 8 == 0)) for n in range(160)]
    write_csv(folder / "payments.csv", ["id", "amount", "age", "label"], rows)


def write_csv(file: Path, names: list[str], rows: list[Any]) -> None:
    with file.open("w") as lines:
        csv.writer(lines).writerows([names, *rows])


#: By recipe: its data, and what its hparams have here.
RECIPES: Mapping[str, tuple[Callable[[Path], None], dict[str, Any]]] = {
    "comments": (write_comments, {}),
    "birds": (write_birds, {"weights": None}),
    "load": (write_load, {}),
    "offers": (write_offers, {}),
    "fraud": (write_payments, {}),
    "sizes": (write_payments, {"units": 8}),
}


def test_each_recipe_has_a_dag_and_a_module() -> None:
    assert {*FILES} == {path for name in RECIPES for path in (f"{name}.py", f"models/{name}.py")}


@pytest.mark.parametrize("name", RECIPES)
def test_a_recipe_prepares_trains_evaluates_and_exports(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write, hparams = RECIPES[name]
    jobs = jobs_of(name, tmp_path / "dags")
    write(tmp_path / "dags")
    monkeypatch.syspath_prepend(tmp_path / "dags" / "models")
    pipeline = Pipeline(tmp_path, data="")
    [rules] = [given for _, module, given in jobs if module == "plan"]
    data = prepare(pipeline.store, tmp_path / "scratch", rules.pop("source"), **rules)
    models: dict[str, str] = {}
    for task, module, given in jobs:
        if module == "train":
            own, _ = given["hparams"]
            given |= {"data": data, "epochs": 1, "hparams": {**plain(own), **hparams}}
            if "start_from" in given:
                given["start_from"] = models[given["start_from"].operator.task_id]
            models[task] = training.run(pipeline.replica("train", task, **given))
            monkeypatch.delitem(sys.modules, name)
    *_, model = models.values()
    for task, module, given in jobs:
        if module == "evaluate":
            gate = [{**each, "bound": loose(each)} for each in given["gate"]]
            given |= {"model": model, "data": data, "gate": gate}
            evaluate.run(pipeline.replica("evaluate", task, **given))
    version = export.run(pipeline.replica("export", "r", model=model, data=data))
    assert version.endswith("/1")


def jobs_of(name: str, folder: Path) -> list[tuple[str, str, dict[str, Any]]]:
    """Write a recipe into ``folder``; the task, the step and the arguments of each of its jobs."""
    (folder / "models").mkdir(parents=True)
    header_and_end = {f"{name}.py": (HEAD, f"\n\n{name}()\n"), f"models/{name}.py": ("", "")}
    for path, (header, end) in header_and_end.items():
        text = header + FILES[path] + end
        text = text.replace("s3://bucket", folder.as_uri()).replace("/data/", f"{folder}/")
        (folder / path).write_text(text.replace("SIZE = 128", "SIZE = 32"))
    bag = DagBag(str(folder / f"{name}.py"))
    assert not bag.import_errors
    return [
        (task.task_id, task.job["module"].rpartition(".")[2], plain(task.job["arguments"]))
        for task in bag.dags[name].topological_sort()
        if isinstance(task, JobOperator) and task.job
    ]


def plain(arguments: Any) -> Any:
    """The arguments that are written in the DAG file, not those of the run."""
    if not isinstance(arguments, Mapping):
        return {}
    return {
        name: value
        for name, value in arguments.items()
        if value is not None and (name == "start_from" or not hasattr(value, "resolve"))
    }


def loose(rule: Mapping[str, Any]) -> float:
    """A bound that each model meets: little is trained here."""
    return 0.0 if rule["kind"] == "at_least" else 1e9
