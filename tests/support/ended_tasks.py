"""Tasks of a pipeline that have ended, and what they have left in the store.

The operators are as Airflow makes them for a listener after a deferral: rendered, and never
executed in this process. ``EndedTask`` stands for Airflow's task instance.
"""

import json
from dataclasses import dataclass, field
from datetime import UTC, datetime
from types import SimpleNamespace
from typing import Any

from airflow.sdk import DAG, BaseOperator

from aerotrain.contract.layout import RUN_LOG
from aerotrain.serving.alias import promote
from aerotrain.store import open_store
from aerotrain_airflow.operators.job import JobOperator
from aerotrain_airflow.operators.release import PromoteOperator, RollbackOperator
from support.training_fixtures import module_of

SOURCE = {"kind": "parquet", "url": "s3://lake/flats/"}
DATA = {
    "fingerprint": "f1",
    "schema": {
        "area": {"dtype": "float32", "shape": []},
        "pixels": {"dtype": "uint8", "shape": [8, 8]},
    },
    "splits": {
        "train": {"shards": [{"records": 70, "bytes": 7000}, {"records": 20, "bytes": 2000}]},
        "test": {"shards": [{"records": 10, "bytes": 1000}]},
    },
}
MODEL = {
    "metrics": {"loss": 0.5, "accuracy": 0.9},
    "strategy": "one_device",
    "step": 540,
    "hparams": {"units": 64},
    "started_from": None,
}
LOG = {
    "goodput": 0.8,
    "wall_seconds": 100.0,
    "restarts": 1,
    "lost_seconds": {"recovery": 12.0},
    "events": [],
}


@dataclass
class EndedTask:
    """The task instance of ``task`` in the run ``one``, with its XComs."""

    task: BaseOperator
    xcoms: dict[str, Any] = field(default_factory=dict)
    states: dict[str, str | None] = field(default_factory=dict)
    state: str = "success"
    run_id: str = "one"
    map_index: int = -1
    max_tries: int = 0
    start_date: datetime = datetime(2026, 11, 24, tzinfo=UTC)

    @property
    def dag_id(self) -> str:
        return self.task.dag_id

    @property
    def task_id(self) -> str:
        return self.task.task_id

    def xcom_pull(self, *, task_ids: str, key: str, map_indexes: int) -> Any:
        assert (task_ids, map_indexes) == (self.task_id, self.map_index)
        return self.xcoms.get(key)

    def get_task_states(self, *, dag_id: str, task_ids: list[str], run_ids: list[str]) -> Any:
        states = {each: self.states[each] for each in task_ids if each in self.states}
        return dict.fromkeys(run_ids, states)

    def get_template_context(self) -> Any:
        return {"dag_run": SimpleNamespace(start_date=self.start_date)}


@dataclass(frozen=True)
class EndedRun:
    """A run of the DAG ``flats`` in ``store``, whose tasks wrote what these URLs name."""

    store: str

    @property
    def data(self) -> str:
        return f"{self.store}/flats/datasets/f1"

    @property
    def model(self) -> str:
        return f"{self.store}/flats/runs/one/train"

    @property
    def evaluation(self) -> str:
        return f"{self.store}/flats/runs/one/evaluate"

    @property
    def versions(self) -> str:
        return f"{self.store}/flats/serving"

    @property
    def predictions(self) -> str:
        return f"{self.store}/flats/predictions/p1"

    def write(self) -> None:
        """Write what the tasks leave in the store."""
        put(f"{self.data}/plan.json", {"source": SOURCE})
        put(f"{self.data}/manifest.json", DATA)
        put(f"{self.model}/model.json", MODEL)
        put(f"{self.model}/{RUN_LOG}", LOG)
        metrics = {"accuracy": 0.88, "loss": "NaN"}
        baseline = {"url": f"{self.versions}/1", "metrics": {}}
        found = {"metrics": metrics, "baseline": baseline, "passed": True}
        put(f"{self.evaluation}/metrics.json", found)
        for version in (1, 2):
            put(f"{self.versions}/{version}/manifest.json", {"files": {}})
        promote(open_store(self.versions), 1, by="ann")
        promote(open_store(self.versions), 2, by="ann", metrics={"accuracy": 0.88})
        predicted = {"source": SOURCE, "model": f"{self.versions}/2"}
        put(f"{self.predictions}/plan.json", predicted)
        files = [{"file": "data/part-00000.parquet", "records": 100, "bytes": 4000}]
        columns = {"flat": "int64", "price": "float"}
        whole = {**predicted, "columns": columns, "records": 100, "files": files}
        put(f"{self.predictions}/manifest.json", whole)

    def tasks(self) -> dict[str, EndedTask]:
        """The task instances by their ids, with what they have returned."""
        model, version = f"{self.model}/model.json", f"{self.versions}/2"
        both = {"model": model, "data": self.data}
        training = {"model": "flats", "data": self.data, "epochs": 3, "hparams": [{"units": 64}]}
        with DAG("flats", schedule=None) as dag:
            job("plan", "data.prepare.plan", source=SOURCE)
            job("partition", "data.prepare.partition", output=self.data, first=0, count=1)
            job("finalize", "data.prepare.finalize", output=self.data)
            job("train", "train", **training)
            job("evaluate", "evaluate", **both)
            job("export", "export", **both)
            job("serve_check", "serve_check", version=version)
            PromoteOperator(task_id="promote", version=version)
            RollbackOperator(task_id="rollback")
            job("predict.plan", "prediction.plan", model="serving", source=SOURCE)
            job("predict.partition", "prediction.partition", output=self.predictions)
            job("predict.finalize", "prediction.finalize", output=self.predictions)
        returned: dict[str, Any] = {
            "finalize": self.data,
            "train": model,
            "evaluate": {"accuracy": 0.88},
            "export": version,
            "serve_check": {"rest_p99": 12.5},
            "predict.finalize": f"{self.predictions}/data",
            "promote": version,
            "rollback": f"{self.versions}/1",
        }
        others = {
            "plan": {"output": self.data},
            "predict.plan": {"output": self.predictions},
        }
        return {
            task.task_id: EndedTask(
                task, {"return_value": returned.get(task.task_id), **others.get(task.task_id, {})}
            )
            for task in dag.tasks
        }


def job(task_id: str, module: str, **arguments: Any) -> JobOperator:
    """The rendered operator of a job with one replica."""
    described = {"module": module_of(module), "replicas": [{"role": "chief"}]}
    return JobOperator(task_id=task_id, job={**described, "arguments": arguments})


def put(url: str, document: Any) -> None:
    """Write a JSON document to a store."""
    folder, _, key = url.rpartition("/")
    open_store(folder).put(key, json.dumps(document).encode())
