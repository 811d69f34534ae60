"""The lineage of a task for OpenLineage: source, data set, model, version and predictions.

The operators import this module when the provider asks them for lineage, after the task has ended;
it needs the extra ``openlineage``. The provider limits the time, and writes one line into the
task's log if an error is raised. Names are those of https://openlineage.io/docs/spec/naming, and
standard facets those of https://openlineage.io/docs/spec/facets.
"""

import hashlib
import json
from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime
from math import isfinite
from typing import Any
from urllib.parse import unquote

import attrs
from airflow.providers.openlineage.api import emit
from airflow.providers.openlineage.conf import namespace
from airflow.providers.openlineage.extractors import OperatorLineage
from airflow.sdk import BaseOperator
from openlineage.client.event_v2 import InputDataset, Job, OutputDataset, Run, RunEvent, RunState
from openlineage.client.facet_v2 import (
    DatasetFacet,
    OutputDatasetFacet,
    dataset_version_dataset,
    output_statistics_output_dataset,
    schema_dataset,
)
from openlineage.client.naming.dataset import S3, DatasetNaming, LocalFileSystem
from openlineage.client.uuid import generate_new_uuid

from aerotrain.contract.layout import ALIAS, METRICS, MODEL, PLAN
from aerotrain.data.dataset import as_numbers
from aerotrain.serving.alias import alias_of
from aerotrain.store import MANIFEST
from aerotrain_airflow.operators.credentials import store_of
from aerotrain_airflow.settings import Settings
from aerotrain_airflow.tracking.task_output import TaskOutput, folder_of_model

Facets = dict[str, DatasetFacet | OutputDatasetFacet]
Lineage = OperatorLineage[Any, Any]

#: The URLs that a task has read, and those that it has written with their facets.
Edges = tuple[Sequence[str], Mapping[str, Facets]]


@attrs.define
class ModelDatasetFacet(DatasetFacet):
    """A model: its metrics, and how it was trained. Not a standard facet, so its key has a prefix.

    ``strategy``, ``step`` and ``hparams`` are those of the training, where they are known.
    """

    metrics: dict[str, float]
    strategy: str | None = None
    step: int | None = None
    hparams: dict[str, Any] = attrs.field(factory=dict)


def lineage_of_job(task: Any, ti: Any, *, failed: bool = False) -> Lineage:
    """What a task that runs a job has read and, unless it failed, what it has written."""
    find = _EDGES.get(task.job.get("module"))
    if find is None or task.is_dry_run:
        return OperatorLineage()
    inputs, outputs = find(TaskOutput(task, ti, Settings.read()))
    return _lineage(inputs, {} if failed else outputs)


def lineage_of_alias(task: BaseOperator, ti: Any) -> Lineage:
    """That of the version that ``task`` has made the served one."""
    served = TaskOutput(task, ti, Settings.read()).returned()
    return OperatorLineage() if served is None else _of_served(served)  # None: it was skipped


def emit_served(dag_id: str, served: str) -> None:
    """Emit the lineage of the version that the page of models has made the served one."""
    found = _of_served(served)
    run, job = Run(str(generate_new_uuid())), Job(namespace(), f"{dag_id}.models_page")
    is_now: Any = {"eventType": RunState.COMPLETE, "eventTime": datetime.now(UTC).isoformat()}
    emit(RunEvent(**is_now, run=run, job=job, inputs=found.inputs, outputs=found.outputs))


def _of_served(served: str) -> Lineage:
    """The version ``served``, and the alias that names it."""
    folder, _, number = served.rpartition("/")
    alias = alias_of(store_of(folder, Settings.read()))
    metrics = alias.history[-1].metrics if alias else {}
    return _lineage([served], {f"{folder}/{ALIAS}": _version(number) | _model({}, metrics)})


def name_of(url: str) -> tuple[str, str]:
    """The namespace and the name of what is at ``url``."""
    scheme, _, path = url.rstrip("/").partition("://")
    if scheme == "python":
        return scheme, path
    if scheme == "s3":
        bucket, _, key = path.partition("/")
        naming: DatasetNaming = S3(bucket, key or "/")
    else:
        naming = LocalFileSystem(unquote(path))
    return naming.get_namespace(), naming.get_name()


def _lineage(inputs: Sequence[str], outputs: Mapping[str, Facets]) -> Lineage:
    written = []
    for url, facets in outputs.items():
        of_run = {key: each for key, each in facets.items() if isinstance(each, OutputDatasetFacet)}
        more = {key: each for key, each in facets.items() if isinstance(each, DatasetFacet)}
        written.append(OutputDataset(*name_of(url), facets=more, outputFacets=of_run))
    return OperatorLineage(inputs=[InputDataset(*name_of(url)) for url in inputs], outputs=written)


def _partitions(output: TaskOutput) -> Edges:
    """What ``prepare`` or ``predict`` has read and, once it is complete, written."""
    is_data = output.task.job["module"].startswith("aerotrain.data.")
    url = output.arguments["output"]
    plan, manifest = output.document(f"{url}/{PLAN}"), output.document(f"{url}/{MANIFEST}")
    source = plan["source"]
    urls = [f"python://{source['module']}"] if "module" in source else source["url"]
    inputs = [urls] if isinstance(urls, str) else [*urls]
    if is_data:
        return inputs, {url: _data(manifest)} if manifest else {}
    return [*inputs, plan["model"]], {url: _predictions(url, manifest)} if manifest else {}


def _training(output: TaskOutput) -> Edges:
    inputs = [output.arguments["data"]]
    if (url := output.returned()) is None:
        return inputs, {}
    folder = folder_of_model(url)
    manifest = output.document(f"{folder}/{MODEL}")
    if started := manifest.get("started_from"):
        inputs.append(folder_of_model(started["model"]))
    # A hash, as a folder may be trained twice.
    version = hashlib.sha256(json.dumps(manifest, sort_keys=True).encode()).hexdigest()[:16]
    return inputs, {folder: _version(version) | _model(manifest)}


def _evaluation(output: TaskOutput) -> Edges:
    url = f"{output.prefix}/{METRICS}"
    found = output.document(url)
    inputs = [folder_of_model(output.arguments["model"]), output.arguments["data"]]
    if baseline := found.get("baseline"):
        inputs.append(baseline["url"])
    metrics = as_numbers(found.get("metrics", {}))
    return inputs, {url: _model({}, metrics)} if found else {}


def _export(output: TaskOutput) -> Edges:
    folder = folder_of_model(output.arguments["model"])
    inputs = [folder, output.arguments["data"]]
    if (url := output.returned()) is None:
        return inputs, {}
    manifest = output.document(f"{folder}/{MODEL}")
    return inputs, {url: _version(url.rpartition("/")[2]) | _model(manifest)}


#: How to find what the jobs of each module have read and written.
_EDGES: Mapping[str, Callable[[TaskOutput], Edges]] = {
    "aerotrain.data.prepare.finalize": _partitions,
    "aerotrain.prediction.finalize": _partitions,
    "aerotrain.training.train": _training,
    "aerotrain.evaluation.evaluate": _evaluation,
    "aerotrain.serving.export": _export,
    "aerotrain.serving.serve_check": lambda output: ([output.arguments["version"]], {}),
}


def _version(version: str) -> Facets:
    return {"version": dataset_version_dataset.DatasetVersionDatasetFacet(version)}


def _model(manifest: Mapping[str, Any], metrics: Mapping[str, float] | None = None) -> Facets:
    """The facet of a model with the manifest of its training; JSON has no infinity and no NaN."""
    shown = manifest.get("metrics", {}) if metrics is None else metrics
    return {
        "aerotrain_model": ModelDatasetFacet(
            metrics={name: value for name, value in shown.items() if isfinite(value)},
            strategy=manifest.get("strategy"),
            step=manifest.get("step"),
            hparams=dict(manifest.get("hparams", {})),
        )
    }


def _table(types: Mapping[str, str], files: Sequence[Mapping[str, Any]]) -> Facets:
    """The types of columns, and the records, bytes and files of what has them."""
    field, counts = schema_dataset.SchemaDatasetFacetFields, output_statistics_output_dataset
    return {
        "schema": schema_dataset.SchemaDatasetFacet(
            fields=[field(name=name, type=kind) for name, kind in types.items()]
        ),
        "outputStatistics": counts.OutputStatisticsOutputDatasetFacet(
            rowCount=sum(each["records"] for each in files),
            size=sum(each["bytes"] for each in files),
            fileCount=len(files),
        ),
    }


def _data(manifest: Mapping[str, Any]) -> Facets:
    types = {
        name: f"{feature['dtype']}{feature['shape'] or ''}"
        for name, feature in manifest["schema"].items()
    }
    shards = [shard for split in manifest["splits"].values() for shard in split["shards"]]
    return _version(manifest["fingerprint"]) | _table(types, shards)


def _predictions(url: str, manifest: Mapping[str, Any]) -> Facets:
    return _version(url.rpartition("/")[2]) | _table(manifest["columns"], manifest["files"])
