"""The results of a run: copied to this disk, and reported at its end."""

import shutil
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from shlex import quote
from typing import Any

from aerotrain.contract.job import prefix_of
from aerotrain.contract.layout import PAGE, TENSORBOARD, path_segment
from aerotrain.serving.versions import BODY
from aerotrain.store import fetch, open_store
from devtools.airflow_api import AirflowApi
from devtools.environment import BUCKET
from devtools.home import Home
from devtools.s3_server import S3Server


@dataclass(frozen=True, kw_only=True)
class Report:
    """The outcome of a successful run; None for what its DAG has no task for."""

    dag: str
    run: str
    seconds: float
    seconds_per_step: float | None
    metrics: Mapping[str, Any] | None
    exported: str | None
    model: Path | None
    tensorboard: Path | None
    statistics: Path | None

    def __str__(self) -> str:
        lines = [f"{self.dag} succeeded in {self.seconds:.0f} s (run {self.run})"]
        if self.metrics:
            lines.append(f"test metrics    {_metrics(self.metrics)}")
        if self.statistics is not None:
            lines.append(f"statistics      {self.statistics}")
        if self.seconds_per_step is not None:
            lines.append(f"training        {1000 * self.seconds_per_step:.1f} ms a step")
        if self.tensorboard is not None:
            lines.append(f"TensorBoard     tensorboard --logdir {quote(str(self.tensorboard))}")
        if self.exported is not None:
            lines.append(f"exported as     {self.exported}")
        if self.model is not None:
            lines += [f"a copy of it    {self.model}", "", "Load it:", "", *_snippet(self.model)]
            lines += ["", "Ask for predictions:", "", *_request(self.dag, self.model)]
        return "\n".join(lines)


def _metrics(metrics: Mapping[str, Any]) -> str:
    return ", ".join(
        f"{name} {value:.4f}" if isinstance(value, float) else f"{name} {value}"
        for name, value in sorted(metrics.items())
    )


def _snippet(model: Path) -> list[str]:
    return [
        "    import tensorflow as tf",
        f'    model = tf.saved_model.load("{model}")',
        '    print(model.signatures["serving_default"].structured_input_signature)',
    ]


def _request(dag: str, model: Path) -> list[str]:
    """Commands that serve the model, and send it the request that it carries."""
    home = Home(model.parent)
    address = f'"$(cat {quote(str(home.models))})/{path_segment(dag)}:predict"'
    return [f"    make up{home.option} && curl -d @{quote(str(model / BODY))} {address}"]


def collect(
    api: AirflowApi,
    s3: S3Server,
    home: Home,
    *,
    dag: str,
    run: str,
    seconds: float,
    seconds_per_step: float | None,
) -> Report:
    """Copy the results out of the store, and report on the run.

    Raises:
        AerotrainError: the store does not hold what the run's tasks returned.
    """
    exported, data = api.result(dag, run, "export"), api.result(dag, run, "prepare.finalize")
    return Report(
        dag=dag,
        run=run,
        seconds=seconds,
        seconds_per_step=seconds_per_step,
        metrics=api.result(dag, run, "evaluate"),
        exported=exported,
        model=_keep_model(exported, s3, home.model) if exported else None,
        tensorboard=_keep_event_files(dag, run, s3, home.tensorboard),
        statistics=_keep_statistics(data, s3, home.statistics) if data else None,
    )


def _keep_statistics(data: str, s3: S3Server, page: Path) -> Path:
    """Download the page with the statistics of the data set."""
    open_store(data, s3.environment).download(PAGE, page)
    return page


def _keep_model(url: str, s3: S3Server, folder: Path) -> Path:
    """Download the model next to ``folder``, check it, and move it there."""
    new = folder.with_name(f"{folder.name}.new")
    shutil.rmtree(new, ignore_errors=True)
    fetch(open_store(url, s3.environment), "", new)
    shutil.rmtree(folder, ignore_errors=True)
    new.rename(folder)
    return folder


def _keep_event_files(dag: str, run: str, s3: S3Server, folder: Path) -> Path | None:
    """Download the event files of the run's training, so that TensorBoard can compare runs.

    Returns:
        The folder of all runs; None if this run has no event files.
    """
    training = prefix_of(f"s3://{BUCKET}/{path_segment(dag)}", path_segment(run), "train")
    store = open_store(f"{training}/{TENSORBOARD}", s3.environment)
    target = folder / path_segment(run)
    for each in store.list():
        store.download(each.key, target / each.key)
    return folder if target.exists() else None
