"""The facets of OpenLineage's data sets: schema, version, counts, statistics, metrics of a model.

https://openlineage.io/docs/spec/facets/ describes those that are standard.
"""

import hashlib
import json
from collections.abc import Mapping
from math import isfinite
from typing import Any

import attrs
from openlineage.client.facet_v2 import (
    DatasetFacet,
    data_quality_metrics_dataset,
    dataset_version_dataset,
    input_statistics_input_dataset,
    output_statistics_output_dataset,
    schema_dataset,
)

from aerotrain.data.dataset import Dataset

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
