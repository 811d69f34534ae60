"""The results of a run: copied to this disk, and reported at its end."""

import shutil
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from shlex import quote
from typing import Any

from aerotrain.contract.errors import counted
from aerotrain.contract.job import prefix_of
from aerotrain.contract.layout import PAGE, QUARANTINE, TENSORBOARD, path_segment
from aerotrain.data.dataset import Dataset
from aerotrain.serving.versions import BODY
from aerotrain.store import MANIFEST, fetch, open_store
from devtools.airflow_api import AirflowApi
from devtools.environment import BUCKET
from devtools.home import Home
from devtools.s3_server import S3Server


def report(api: AirflowApi, s3: S3Server, home: Home, dag: str, run: str) -> str:
    """Copy the results of a run that succeeded out of the store; what they are, and where.

    Raises:
        AerotrainError: the store does not hold what the run's tasks returned.
    """
    lines, rejected = [], []
    if metrics := api.result(dag, run, "evaluate"):
        lines.append(f"test metrics    {_metrics(metrics)}")
    if data := api.result(dag, run, "prepare.finalize"):
        store = open_store(data, s3.environment)
        store.download(PAGE, home.statistics)
        dataset = Dataset.from_json(store.get(MANIFEST))
        if dataset.rejected:
            share = dataset.rejected / (dataset.records + dataset.rejected)
            rejected.append(
                f"\n{counted(dataset.rejected, 'record')} of the source rejected ({share:.1%}), "
                f"listed in {data}/{QUARANTINE}"
            )
        lines.append(f"statistics      {home.statistics}")
    if _keep_event_files(dag, run, s3, home.tensorboard):
        program = f"{sys.prefix}/bin/tensorboard".removeprefix(f"{Path.cwd()}/")
        lines.append(f"TensorBoard     {program} --logdir {quote(str(home.tensorboard))}")
    if exported := api.result(dag, run, "export"):
        _keep_model(exported, s3, home.model)
        lines += [f"exported as     {exported}", *how_to_use(dag, home)]
    return "\n".join([*lines, *rejected])


def _metrics(metrics: Mapping[str, Any]) -> str:
    return ", ".join(
        f"{name} {value:.4f}" if isinstance(value, float) else f"{name} {value}"
        for name, value in sorted(metrics.items())
    )


def how_to_use(dag: str, home: Home) -> Iterator[str]:
    """How to load the copy of a model, and to send a server the request that it carries."""
    address = f'"$(cat {quote(str(home.models))})/{path_segment(dag)}:predict"'
    yield f"a copy of it    {home.model}"
    yield "\nLoad it:\n"
    yield "    import tensorflow as tf"
    yield f'    model = tf.saved_model.load("{home.model}")'
    yield '    print(model.signatures["serving_default"].structured_input_signature)'
    yield "\nAsk for predictions:\n"
    yield f"    make up{home.option} && curl -d @{quote(str(home.model / BODY))} {address}"


def _keep_model(url: str, s3: S3Server, folder: Path) -> None:
    """Download the model next to ``folder``, check it, and move it there."""
    new = folder.with_name(f"{folder.name}.new")
    shutil.rmtree(new, ignore_errors=True)
    fetch(open_store(url, s3.environment), "", new)
    shutil.rmtree(folder, ignore_errors=True)
    new.rename(folder)


def _keep_event_files(dag: str, run: str, s3: S3Server, folder: Path) -> bool:
    """Download the event files of the run's training, so that TensorBoard can compare runs.

    Returns whether this run has event files.
    """
    training = prefix_of(f"s3://{BUCKET}/{path_segment(dag)}", path_segment(run), "train")
    store = open_store(f"{training}/{TENSORBOARD}", s3.environment)
    target = folder / path_segment(run)
    for each in store.list():
        store.download(each.key, target / each.key)
    return target.exists()
