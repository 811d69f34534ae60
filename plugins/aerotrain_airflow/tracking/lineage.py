"""The lineage of a task for OpenLineage: source, data set, model, version and predictions.

The operators import this module when the provider asks them for lineage, after the task has ended;
it needs the extra ``openlineage``. The provider limits the time, and writes one line into the
task's log if an error is raised. Names are those of https://openlineage.io/docs/spec/naming, and
standard facets those of https://openlineage.io/docs/spec/facets.
"""

import hashlib
import json
from collections.abc import Callable, Mapping
from math import isfinite
from typing import Any
from urllib.parse import unquote

import attrs
from airflow.providers.openlineage.extractors import OperatorLineage
from airflow.sdk import BaseOperator
from openlineage.client.event_v2 import InputDataset, OutputDataset
from openlineage.client.facet_v2 import (
    DatasetFacet,
    JobFacet,
    data_quality_metrics_dataset,
    dataset_version_dataset,
    input_statistics_input_dataset,
    output_statistics_output_dataset,
    schema_dataset,
    source_code_location_job,
)
from openlineage.client.naming.dataset import S3, DatasetNaming, LocalFileSystem

from aerotrain.contract.gate import SERVING
from aerotrain.contract.layout import ALIAS, METRICS, PLAN
from aerotrain.data.dataset import Dataset, as_numbers, statistics_in
from aerotrain.serving.alias import alias_of
from aerotrain.store import MANIFEST
from aerotrain_airflow.operators.outputs import TaskOutput, folder_of_model
from aerotrain_airflow.settings import Settings

Facets = dict[str, DatasetFacet]
Written = output_statistics_output_dataset.OutputStatisticsOutputDatasetFacet


@attrs.define
class ModelDatasetFacet(DatasetFacet):
    """A model: its metrics, and how it was trained. Not a standard facet, so its key has a prefix.

    ``strategy``, ``step`` and ``hparams`` are those of the training, where they are known.
    """

    metrics: dict[str, float]
    strategy: str | None = None
    step: int | None = None
    hparams: dict[str, Any] = attrs.field(factory=dict)


def model_facets(metrics: Mapping[str, float], manifest: Mapping[str, Any] | None = None) -> Facets:
    """The facet of a model with these metrics and the manifest of its training."""
    manifest = manifest or {}
    return {
        "aerotrain_model": ModelDatasetFacet(
            metrics=_finite(metrics),
            strategy=manifest.get("strategy"),
            step=manifest.get("step"),
            hparams=dict(manifest.get("hparams", {})),
        )
    }


def trained_facets(manifest: Mapping[str, Any]) -> Facets:
    """The facets of a trained model; its version is a hash, as a folder may be trained twice."""
    content = json.dumps(manifest, sort_keys=True).encode()
    version = hashlib.sha256(content).hexdigest()[:16]
    return version_facet(version) | model_facets(manifest.get("metrics", {}), manifest)


def version_facet(version: str) -> Facets:
    """The facet of a data set's version."""
    return {"version": dataset_version_dataset.DatasetVersionDatasetFacet(version)}


def schema_facet(types: Mapping[str, str]) -> Facets:
    """The facet of columns by their types."""
    fields = [
        schema_dataset.SchemaDatasetFacetFields(name=name, type=kind)
        for name, kind in types.items()
    ]
    return {"schema": schema_dataset.SchemaDatasetFacet(fields=fields)}


def data_facets(data: Dataset) -> Facets:
    """The schema of a data set, and its fingerprint as its version."""
    types = {
        name: f"{feature.dtype}{list(feature.shape) or ''}" for name, feature in data.schema.items()
    }
    return schema_facet(types) | version_facet(data.fingerprint)


def quality_facet(data: Dataset, statistics: Mapping[str, Mapping[str, Any]]) -> Facets:
    """The missing and distinct values of each column and, of numbers, their range and quartiles."""
    metrics = data_quality_metrics_dataset
    columns = {
        name: metrics.ColumnMetrics(
            nullCount=column.get("missing"),
            distinctCount=column.get("distinct"),
            quantiles=_finite(_quartiles(column.get("quantiles", {}))),
            **_finite({each: column[each] for each in ("min", "max") if each in column}),
        )
        for name, column in statistics.items()
    }
    records, size, files = _counts(data)
    return {
        "dataQualityMetrics": metrics.DataQualityMetricsDatasetFacet(
            columnMetrics=columns, rowCount=records, bytes=size, fileCount=files
        )
    }


def _quartiles(quantiles: Mapping[str, float]) -> dict[str, float]:
    """The quartiles among the percentiles, so that an event stays small."""
    return {share: value for share, value in quantiles.items() if float(share) * 4 % 1 == 0}


def written_facet(data: Dataset) -> dict[str, Written]:
    """The records, bytes and files of a data set, for its output."""
    records, size, files = _counts(data)
    return {"outputStatistics": Written(rowCount=records, size=size, fileCount=files)}


def read_facet(data: Dataset) -> dict[str, Any]:
    """The records, bytes and files of a data set, for its input."""
    records, size, files = _counts(data)
    statistics = input_statistics_input_dataset.InputStatisticsInputDatasetFacet
    return {"inputStatistics": statistics(rowCount=records, size=size, fileCount=files)}


def _counts(data: Dataset) -> tuple[int, int, int]:
    shards = [shard for split in data.splits.values() for shard in split.shards]
    return sum(each.records for each in shards), sum(each.bytes for each in shards), len(shards)


def _finite(values: Mapping[str, Any]) -> dict[str, Any]:
    """The numbers without infinity and NaN, which JSON lacks."""
    return {name: value for name, value in values.items() if isfinite(value)}


Lineage = OperatorLineage[Any, Any]

#: The data sets that a task has read, and those that it has written.
Edges = tuple[list[InputDataset], list[OutputDataset]]


def lineage_of_job(task: Any, ti: Any, *, failed: bool = False) -> Lineage:
    """What a task that runs a job has read and, unless it failed, what it has written."""
    find = _EDGES.get(task.job.get("module"))
    if find is None or task.is_dry_run:
        return OperatorLineage(job_facets=code_location(task, ti))
    inputs, outputs = find(TaskOutput(task, ti, Settings.read()))
    return OperatorLineage(
        inputs=inputs, outputs=[] if failed else outputs, job_facets=code_location(task, ti)
    )


def lineage_of_alias(task: BaseOperator, ti: Any) -> Lineage:
    """The version that ``task`` has made the served one, and the alias that names it."""
    output = TaskOutput(task, ti, Settings.read())
    served = output.returned()
    if served is None:  # the task was skipped
        return OperatorLineage(job_facets=code_location(task, ti))
    folder, _, number = served.rpartition("/")
    alias = alias_of(output.store(folder))
    facets = model_facets(alias.history[-1].metrics if alias else {}) | version_facet(number)
    return OperatorLineage(
        inputs=[InputDataset(*name_of(served), facets=version_facet(number))],
        outputs=[OutputDataset(*name_of(f"{folder}/{ALIAS}"), facets=facets)],
        job_facets=code_location(task, ti),
    )


def name_of(url: str) -> tuple[str, str]:
    """The namespace and the name of what is at ``url``."""
    scheme, _, path = url.rstrip("/").partition("://")
    if scheme == "s3":
        bucket, _, key = path.partition("/")
        naming: DatasetNaming = S3(bucket, key or "/")
    else:
        naming = LocalFileSystem(unquote(path))
    return naming.get_namespace(), naming.get_name()


def code_location(task: BaseOperator, ti: Any) -> dict[str, JobFacet]:
    """Where the DAG file is on the web; nothing if its bundle has no version or no such page."""
    bundle, dag = getattr(ti, "bundle_instance", None), task.get_dag()
    if bundle is None or dag is None or not bundle.version:
        return {}
    if (template := bundle.view_url_template()) is None:
        return {}
    url = template.format(version=bundle.version, subdir=getattr(bundle, "subdir", ""))
    facet = source_code_location_job.SourceCodeLocationJobFacet(
        type="git", url=url, path=dag.relative_fileloc, version=bundle.version
    )
    return {"sourceCodeLocation": facet}


def _by_partitions(output: TaskOutput) -> Edges:
    """What a task of ``prepare`` or ``predict`` reads and writes.

    The last task describes what it has completed; the others, and one that failed, only name it.
    """
    *_, package, step = output.task.job["module"].split(".")
    url = output.returned("output") if step == "plan" else output.arguments["output"]
    if url is None:  # the plan failed
        return _sources(output.arguments["source"]), []
    plan = output.document(f"{url}/{PLAN}")
    inputs = _sources(plan["source"])
    if package == "prediction":
        inputs.append(_read(plan["model"]))
        if output.arguments.get("model") == SERVING:
            inputs.append(_read(f"{plan['model'].rpartition('/')[0]}/{ALIAS}"))
    written = OutputDataset(*name_of(url))
    if step == "finalize" and output.store(url).exists(MANIFEST):
        describe = _describe_data if package == "prepare" else _describe_predictions
        describe(output, url, written)
    return inputs, [written]


def _describe_data(output: TaskOutput, url: str, written: OutputDataset) -> None:
    data = output.dataset(url)
    written.facets = data_facets(data) | quality_facet(data, statistics_in(output.store(url)))
    written.outputFacets = {**written_facet(data)}


def _describe_predictions(output: TaskOutput, url: str, written: OutputDataset) -> None:
    found = output.document(f"{url}/{MANIFEST}")
    files = found["files"]
    counts = Written(found["records"], sum(each["bytes"] for each in files), len(files))
    written.facets = schema_facet(found["columns"]) | version_facet(url.rpartition("/")[2])
    written.outputFacets = {"outputStatistics": counts}


def _training(output: TaskOutput) -> Edges:
    inputs = [_read_data(output)]
    if (url := output.returned()) is None:
        return inputs, []
    folder, manifest = folder_of_model(url), output.model(url)
    started = (manifest.get("started_from") or {}).get("model")
    inputs += [_read(folder_of_model(started))] if started else []
    return inputs, [OutputDataset(*name_of(folder), facets=trained_facets(manifest))]


def _evaluation(output: TaskOutput) -> Edges:
    url = f"{output.prefix}/{METRICS}"
    found = output.document(url)
    inputs = [_read_model(output), _read_data(output)]
    if baseline := found.get("baseline"):
        inputs.append(_read(baseline["url"]))
    facets = model_facets(as_numbers(found.get("metrics", {})))
    return inputs, [OutputDataset(*name_of(url), facets=facets)] if found else []


def _export(output: TaskOutput) -> Edges:
    inputs = [_read_model(output), _read_data(output)]
    if (url := output.returned()) is None:
        return inputs, []
    manifest = output.model(output.arguments["model"])
    facets = model_facets(manifest.get("metrics", {}), manifest)
    facets |= version_facet(url.rpartition("/")[2])
    return inputs, [OutputDataset(*name_of(url), facets=facets)]


def _serving_check(output: TaskOutput) -> Edges:
    return [_read(output.arguments["version"])], []


#: How to find what the jobs of each module have read and written.
_EDGES: Mapping[str, Callable[[TaskOutput], Edges]] = {
    "aerotrain.data.prepare.plan": _by_partitions,
    "aerotrain.data.prepare.partition": _by_partitions,
    "aerotrain.data.prepare.finalize": _by_partitions,
    "aerotrain.training.train": _training,
    "aerotrain.evaluation.evaluate": _evaluation,
    "aerotrain.serving.export": _export,
    "aerotrain.serving.serve_check": _serving_check,
    "aerotrain.prediction.plan": _by_partitions,
    "aerotrain.prediction.partition": _by_partitions,
    "aerotrain.prediction.finalize": _by_partitions,
}


def _sources(source: Mapping[str, Any]) -> list[InputDataset]:
    """What a source of ``prepare`` or ``predict`` reads: files, or a module of the user's."""
    if "module" in source:
        return [InputDataset("python", source["module"])]
    urls = source["url"]
    return [_read(url) for url in ([urls] if isinstance(urls, str) else urls)]


def _read(url: str) -> InputDataset:
    return InputDataset(*name_of(url))


def _read_model(output: TaskOutput) -> InputDataset:
    return _read(folder_of_model(output.arguments["model"]))


def _read_data(output: TaskOutput) -> InputDataset:
    """The data set that is an argument of the task."""
    url = output.arguments["data"]
    data = output.dataset(url)
    return InputDataset(*name_of(url), facets=data_facets(data), inputFacets=read_facet(data))
