"""What a run leaves behind: kept on this disk, and told at its end."""

import shutil
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from aerotrain.contract.names import path_segment
from aerotrain.store import fetch, open_store
from aerotrain_airflow.local.api import AirflowApi
from aerotrain_airflow.local.home import Home
from aerotrain_airflow.local.s3_server import S3Server
from aerotrain_airflow.local.settings import BUCKET


@dataclass(frozen=True, kw_only=True)
class Report:
    """The outcome of a successful run; what its DAG has no task for is None."""

    dag: str
    run: str
    seconds: float
    seconds_a_step: float | None
    metrics: Mapping[str, Any] | None
    exported: str | None
    model: Path | None
    tensorboard: Path | None

    def __str__(self) -> str:
        lines = [f"{self.dag} succeeded in {self.seconds:.0f} s (run {self.run})"]
        if self.metrics:
            lines.append(f"test metrics    {_metrics(self.metrics)}")
        if self.seconds_a_step is not None:
            lines.append(f"training        {1000 * self.seconds_a_step:.1f} ms a step")
        if self.tensorboard is not None:
            lines.append(f"TensorBoard     tensorboard --logdir {self.tensorboard}")
        if self.exported is not None:
            lines.append(f"exported as     {self.exported} (`make up` serves it again)")
        if self.model is not None:
            lines += [f"a copy of it    {self.model}", "", "Load it:", "", *_snippet(self.model)]
        return "\n".join(lines)


def _metrics(metrics: Mapping[str, Any]) -> str:
    return ", ".join(
        f"{name} {value:.4f}" if isinstance(value, float) else f"{name} {value}"
        for name, value in metrics.items()
    )


def _snippet(model: Path) -> list[str]:
    return [
        "    import tensorflow as tf",
        f'    model = tf.saved_model.load("{model}")',
        '    print(model.signatures["serving_default"].structured_input_signature)',
    ]


def keep(
    api: AirflowApi,
    s3: S3Server,
    home: Home,
    *,
    dag: str,
    run: str,
    seconds: float,
    seconds_a_step: float | None,
) -> Report:
    """Copy out of the store what outlives its server, and report on the run.

    Raises:
        AerotrainError: the store does not hold what the run's tasks say it does.
    """
    exported = api.result(dag, run, "export")
    return Report(
        dag=dag,
        run=run,
        seconds=seconds,
        seconds_a_step=seconds_a_step,
        metrics=api.result(dag, run, "evaluate"),
        exported=exported,
        model=_keep_model(exported, s3, home.model) if exported else None,
        tensorboard=_keep_event_files(dag, run, s3, home.tensorboard),
    )


def _keep_model(url: str, s3: S3Server, folder: Path) -> Path:
    """Fetch the model beside ``folder``, check it, and put it in its place."""
    new = folder.with_name(f"{folder.name}.new")
    shutil.rmtree(new, ignore_errors=True)
    fetch(open_store(url, s3.environment), "", new)
    shutil.rmtree(folder, ignore_errors=True)
    new.rename(folder)
    return folder


def _keep_event_files(dag: str, run: str, s3: S3Server, folder: Path) -> Path | None:
    """Download the event files of the run's training, for TensorBoard to compare with others.

    Returns:
        The folder of all runs; None where this run has no event files.
    """
    url = f"s3://{BUCKET}/{path_segment(dag)}/runs/{path_segment(run)}/train/tensorboard"
    store = open_store(url, s3.environment)
    target = folder / path_segment(run)
    for each in store.list():
        store.download(each.key, target / each.key)
    return folder if target.exists() else None
