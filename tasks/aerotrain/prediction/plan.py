"""The first step of ``predict``: list the source, and check its records against the model.

The files of the predictions are ``data/part-00003.parquet``, and other programs read the whole
folder ``data``.
"""

import base64
import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, Self

import pyarrow as pa

from aerotrain.contract.errors import FinalError, SpecError, nearest
from aerotrain.contract.gate import SERVING
from aerotrain.contract.layout import PREDICTIONS, path_segment
from aerotrain.contract.preparing import PredictArguments
from aerotrain.data.dataset import Feature, Schema, schema_from_dict, schema_to_dict
from aerotrain.data.partitions import (
    Fragments,
    Plan,
    descriptions_of,
    fingerprints_of,
    grouped,
    is_finished,
    publish_plan,
)
from aerotrain.data.prepare.cast import cast_to_schema
from aerotrain.data.sources import open_source
from aerotrain.data.sources.batch import Batch
from aerotrain.data.sources.source import Source
from aerotrain.prediction.columns import output_schema
from aerotrain.replica import Replica
from aerotrain.serving.alias import served_version
from aerotrain.serving.classes import Classes, classes_in
from aerotrain.serving.signature import FILE, Signature
from aerotrain.serving.versions import CLASSES
from aerotrain.store import MANIFEST, MissingError, open_store


@dataclass(frozen=True, kw_only=True)
class PredictionPlan(Plan):
    """What is to be predicted, by the version at the URL ``model``.

    ``reading`` are the features as which the source is read, or None if it knows them itself.
    ``needed`` are those that the model takes. ``arrow_schema`` are the columns of the files,
    serialized, and ``classes`` those of the model's outputs.
    """

    OUTPUT: ClassVar = "prediction"
    STEP: ClassVar = "predict"
    FOLDER: ClassVar = PREDICTIONS
    VERSION: ClassVar = 3

    model: str
    rules: PredictArguments
    reading: Schema | None
    needed: Schema
    arrow_schema: str
    classes: Mapping[str, Classes]

    @property
    def columns(self) -> pa.Schema:
        """The columns of the files."""
        return pa.ipc.read_schema(pa.py_buffer(base64.b64decode(self.arrow_schema)))

    @classmethod
    def of(cls, data: Mapping[str, Any]) -> Self:
        parsed = {
            "rules": PredictArguments.from_dict(data["rules"]),
            "reading": data["reading"] and schema_from_dict(data["reading"]),
            "needed": schema_from_dict(data["needed"]),
            "classes": {name: Classes(**each) for name, each in data["classes"].items()},
        }
        return cls(**{**data, **parsed})


def run(replica: Replica) -> dict[str, Any]:
    """Plan the predictions, unless those of the same model for the same input exist.

    Returns:
        ``{"output": url, "partitions": [arguments of aerotrain.prediction.partition, …]}``,
        none of them where there is nothing to predict.

    Raises:
        FinalError: the model does not exist, the source is empty, or does not fit the model.
    """
    arguments = PredictArguments.from_dict(replica.job.arguments)
    model = version_of(replica.job.store, arguments)
    plan, partitions = make_plan(model, arguments)
    store = open_store(replica.job.store).child(plan.folder)
    if is_finished(store):
        return {"output": store.url, "partitions": []}
    print(f"the model is {model}; it takes {', '.join(plan.needed)}")
    tasks = publish_plan(store, plan, partitions, arguments.partition_tasks)
    return {
        "output": store.url,
        "partitions": [
            {"output": store.url, "first": task[0], "count": len(task)} for task in tasks
        ],
    }


def version_of(pipeline: str, arguments: PredictArguments) -> str:
    """The URL of the version that ``arguments`` name, for a DAG with the store ``pipeline``.

    Raises:
        FinalError: no version is exported.
    """
    if arguments.model != SERVING:
        return arguments.model.rstrip("/")
    if arguments.dag_id is not None:
        pipeline = f"{pipeline.rpartition('/')[0]}/{path_segment(arguments.dag_id)}"
    found = served_version(pipeline)
    if found is None:
        raise FinalError(
            f"there is no exported version in {pipeline}; export a model first, or name the DAG "
            "that does by dag_id"
        )
    return found


def make_plan(model: str, arguments: PredictArguments) -> tuple[PredictionPlan, list[Fragments]]:
    """The plan of predictions by the version ``model``, and the fragments of each partition.

    The first records are read and checked, and nothing is written.

    Raises:
        FinalError: the model is not complete; the source is empty, or its columns are not those
            that the model takes.
    """
    store = open_store(model)
    try:
        signature = Signature.parse(f"the model {model}", store.get(FILE))
        identity = hashlib.sha256(store.get(MANIFEST)).hexdigest()
    except MissingError as error:
        raise FinalError(
            f"{model} is no complete version of an exported model: {error}; export one, or name "
            "another"
        ) from error
    # A model that predicts numbers has no names of classes.
    classes = classes_in(store.get(CLASSES)) if store.exists(CLASSES) else {}
    source, needed, reading = _selected(arguments, signature)
    batch = _first(source, reading)
    cast_to_schema(batch, needed, arguments.rules)
    columns = output_schema(batch, arguments.keep, signature.outputs, classes)
    arrow_schema = base64.b64encode(columns.serialize()).decode()
    groups = list(grouped(source.fragments(), arguments.part_bytes))
    inputs = [
        PredictionPlan.VERSION,
        identity,
        {name: value for name, value in source.described().items() if name != "url"},
        [reading and schema_to_dict(reading), schema_to_dict(needed), arrow_schema],
        [arguments.keep, arguments.fill, arguments.batch_size],
    ]
    plan = PredictionPlan(
        model=model,
        rules=arguments,
        source=source.described(),
        reading=reading,
        needed=needed,
        arrow_schema=arrow_schema,
        classes=classes,
        partitions=fingerprints_of(inputs, groups),
    )
    return plan, descriptions_of(groups)


def _selected(
    arguments: PredictArguments, signature: Signature
) -> tuple[Source, Schema, Schema | None]:
    """The source with the columns that are read alone, those that the model takes, and all of them.

    The last is None for a source that knows its columns only once it was read.

    Raises:
        FinalError: the source is empty, or lacks a column.
    """
    source, unreadable = open_source(arguments.source).readable()
    reasons = "".join(f"; {name!r} cannot be read: {why}" for name, why in unreadable.items())
    schema = found = source.schema()
    if schema is None:
        schema = source.schema_of(_first(source, None))
    for name in arguments.keep:
        if name not in schema:
            raise SpecError(
                f"keep names a column {name!r}, which the source does not have"
                f"{nearest(name, schema)}; it has {', '.join(schema)}{reasons}"
            )
    try:
        inputs = signature.columns(schema)
    except FinalError as error:
        raise FinalError(f"{error}{reasons}") from error
    needed = {
        column: Feature(signature.inputs[name].dtype, schema[column].shape)
        for name, column in inputs.items()
    }
    names = [*needed, *(name for name in arguments.keep if name not in needed)]
    source = source.selecting(names)
    if found is None:
        return source, needed, None
    selected = names if "columns" in source.described() else list(found)
    return source, needed, {name: needed.get(name, found[name]) for name in selected}


def _first(source: Source, reading: Schema | None) -> Batch:
    """The first batch that has a record.

    Raises:
        FinalError: none has.
    """
    for fragment in source.fragments():
        for batch in source.read(fragment.description, reading):
            if len(batch):
                return batch
    raise FinalError(
        f"the source {dict(source.described())} is empty: there is no record to predict; check "
        "that its input is where it looks for it"
    )
