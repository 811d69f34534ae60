"""What a task has written, found again from its rendered fields, its XComs and the store.

What ``execute`` has set on the operator is not used: after a deferral it is lost
(https://github.com/apache/airflow/issues/40521).
"""

import json
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from aerotrain.contract.job import prefix_of
from aerotrain.contract.layout import MODEL
from aerotrain.store import MissingError
from aerotrain_airflow.operators.credentials import store_of
from aerotrain_airflow.operators.description import place_of
from aerotrain_airflow.settings import Settings


@dataclass(frozen=True)
class TaskOutput:
    """The output of the task instance ``ti`` of ``task``, whose fields are rendered."""

    task: Any
    ti: Any
    settings: Settings

    @property
    def place(self) -> Mapping[str, str]:
        """The store of the pipeline, and the segments of run and task."""
        return place_of(self.task, self.ti, self.settings)

    @property
    def prefix(self) -> str:
        """The URL of the folder where only this task writes."""
        return prefix_of(**self.place)

    @property
    def arguments(self) -> Mapping[str, Any]:
        """The arguments of the job that the task has run."""
        return {**self.task.job.get("arguments", {}), **self.task.arguments}

    def returned(self, key: str = "return_value") -> Any:
        """What the task has returned, or another one of its XComs; None if there is none."""
        index = -1 if self.ti.map_index is None else self.ti.map_index
        return self.ti.xcom_pull(task_ids=self.ti.task_id, key=key, map_indexes=index)

    def document(self, url: str) -> dict[str, Any]:
        """The JSON object at ``url``; empty if there is none."""
        folder, _, key = url.rpartition("/")
        with suppress(MissingError):
            found: dict[str, Any] = json.loads(store_of(folder, self.settings).get(key))
            return found
        return {}


def folder_of_model(url: str) -> str:
    """The folder of a trained model, of which ``url`` may be the manifest."""
    return url.removesuffix(f"/{MODEL}").rstrip("/")
