"""The first step of ``predict``: list the source, and check its records against the model."""

import hashlib
from collections import deque
from collections.abc import Iterator, Mapping
from typing import Any

from aerotrain.contract.errors import FinalError, SpecError, counted, nearest
from aerotrain.contract.gate import SERVING
from aerotrain.contract.layout import PLAN, path_segment, predictions_key
from aerotrain.contract.preparing import PredictArguments
from aerotrain.data.dataset import Feature, Schema, schema_to_dict
from aerotrain.data.hashing import fingerprint_of
from aerotrain.data.prepare.cast import cast_to_schema
from aerotrain.data.prepare.layout import PlannedPartition, fragments_key
from aerotrain.data.prepare.plan import adjacent, divided
from aerotrain.data.sources import Batch, DeclaredSource, Fragment, open_source
from aerotrain.data.sources.readable import readable
from aerotrain.prediction.columns import output_schema
from aerotrain.prediction.layout import VERSION, PredictionPlan
from aerotrain.replica import Replica
from aerotrain.serving.alias import served_version
from aerotrain.serving.classes import Classes, classes_in
from aerotrain.serving.signature import FILE, Signature
from aerotrain.serving.versions import CLASSES
from aerotrain.store import MANIFEST, MissingError, open_store
from aerotrain.store.manifest import each_of


def run(replica: Replica) -> dict[str, Any]:
    """Plan the predictions, unless those of the same model for the same input exist.

    Returns:
        ``{"predictions": url, "partitions": [arguments of aerotrain.prediction.partition, …]}``,
        none of them where there is nothing to predict.

    Raises:
        FinalError: the model does not exist, the source is empty, or does not fit the model.
    """
    arguments = PredictArguments.from_dict(replica.job.arguments)
    model = version_of(replica.job.store, arguments)
    plan, partitions = make_plan(model, arguments)
    store = open_store(replica.job.store).child(predictions_key(plan.fingerprint))
    if store.exists(MANIFEST):
        store.put(PLAN, store.get(PLAN))  # retention sees that they are used
        print(
            f"already predicted: {store.url} has the predictions of this model for this very "
            "input, and the task partition is skipped"
        )
        return {"predictions": store.url, "partitions": []}
    documents = ((fragments_key(n), each.to_json().encode()) for n, each in enumerate(partitions))
    deque(each_of(lambda document: store.put(*document), documents), maxlen=0)
    store.put(PLAN, plan.to_json().encode())
    fragments = counted(sum(len(each.fragments) for each in partitions), "fragment")
    print(f"the model is {model}; it takes {', '.join(plan.needed)}")
    print(f"planned {store.url}: {counted(len(partitions), 'partition')} of {fragments}")
    return {
        "predictions": store.url,
        "partitions": [
            {"predictions": store.url, "first": part[0], "count": len(part)}
            for part in divided(len(partitions), arguments.partition_tasks)
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


def make_plan(
    model: str, arguments: PredictArguments
) -> tuple[PredictionPlan, list[PlannedPartition]]:
    """The plan of predictions by the version ``model``, and the fragments of each partition.

    The first records are read and checked, and nothing is written.

    Raises:
        FinalError: the model is not complete; the source is empty, or its columns are not those
            that the model takes.
    """
    signature, classes, identity = _read_model(model)
    source, needed, reading = _selected(arguments, signature)
    batch = _first(source, reading)
    cast_to_schema(batch, needed, arguments.rules)
    columns = output_schema(batch, arguments.keep, signature.outputs, classes)
    groups = list(adjacent(source.fragments(), arguments.part_bytes))
    fingerprint = fingerprint_of(
        [
            VERSION,
            identity,
            {name: value for name, value in source.described().items() if name != "url"},
            schema_to_dict(needed),
            [arguments.keep, arguments.fill, arguments.batch_size],
            [[each.fingerprint for each in group] for group in groups],
        ]
    )
    plan = PredictionPlan(
        model=model,
        arguments=arguments,
        source=source.described(),
        reading=reading,
        needed=needed,
        columns=columns,
        classes=classes,
        partitions=len(groups),
        fingerprint=fingerprint,
    )
    return plan, [PlannedPartition(fragments=[f.description for f in group]) for group in groups]


def _selected(
    arguments: PredictArguments, signature: Signature
) -> tuple[DeclaredSource, Schema, Schema | None]:
    """The source with the columns that are read alone, those that the model takes, and all of them.

    The last is None for a source that knows its columns only once it was read.

    Raises:
        FinalError: the source is empty, or lacks a column.
    """
    source, unreadable = readable(open_source(arguments.source))
    schema = found = source.schema()
    if schema is None:
        schema = source.declared.stored(source.declared.features_of(_first(source, None).columns))
    for name in arguments.keep:
        if name not in schema:
            raise SpecError(
                f"keep names a column {name!r}, which the source does not have"
                f"{nearest(name, schema)}; it has {', '.join(schema)}{_reasons(unreadable)}"
            )
    try:
        inputs = signature.columns(schema)
    except FinalError as error:
        raise FinalError(f"{error}{_reasons(unreadable)}") from error
    needed = {
        column: Feature(signature.inputs[name].dtype, schema[column].shape)
        for name, column in inputs.items()
    }
    names = [*needed, *(name for name in arguments.keep if name not in needed)]
    source = open_source(source.described_only(names))
    if found is None:
        return source, needed, None
    selected = names if "columns" in source.described() else list(found)
    return source, needed, {name: needed.get(name, found[name]) for name in selected}


def _reasons(unreadable: Mapping[str, str]) -> str:
    return "".join(f"; {name!r} cannot be read: {why}" for name, why in unreadable.items())


def _read_model(url: str) -> tuple[Signature, dict[str, Classes], str]:
    """The signature of the version at ``url``, the classes of outputs, and a hash of all its files.

    Raises:
        FinalError: it is not there, or not complete.
    """
    store = open_store(url)
    try:
        content, manifest = store.get(FILE), store.get(MANIFEST)
    except MissingError as error:
        raise FinalError(
            f"{url} is no complete version of an exported model: {error}; export one, or name "
            "another"
        ) from error
    try:
        classes = classes_in(store.get(CLASSES))
    except MissingError:  # it predicts numbers
        classes = {}
    signature = Signature.parse(f"the model {url}", content)
    return signature, classes, hashlib.sha256(manifest).hexdigest()


def _first(source: DeclaredSource, reading: Schema | None) -> Batch:
    """The first batch that has a record.

    Raises:
        FinalError: none has.
    """
    for batch in _batches(source, source.fragments(), reading):
        if len(batch):
            return batch
    raise FinalError(
        f"the source {dict(source.described())} is empty: there is no record to predict; check "
        "that its input is where it looks for it"
    )


def _batches(
    source: DeclaredSource, fragments: Iterator[Fragment], reading: Schema | None
) -> Iterator[Batch]:
    for fragment in fragments:
        yield from source.read(fragment.description, reading)
