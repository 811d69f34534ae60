"""The first step of ``prepare``: list the source, and plan the partitions to write."""

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, ClassVar, Self

from aerotrain.contract.errors import FinalError, SpecError, nearest
from aerotrain.contract.layout import DATASETS, dataset_key, latest_key, path_segment
from aerotrain.contract.preparing import LABEL, PlanArguments
from aerotrain.data.dataset import (
    VERSION,
    Feature,
    Schema,
    load_statistics,
    schema_from_dict,
    schema_to_dict,
)
from aerotrain.data.partitions import (
    Fragments,
    Plan,
    descriptions_of,
    fingerprints_of,
    grouped,
    is_finished,
    publish_plan,
)
from aerotrain.data.sources import open_source
from aerotrain.data.sources.source import Source
from aerotrain.data.statistics.drift import check_changes, schema_changes
from aerotrain.replica import Replica
from aerotrain.store import MissingError, Store, open_store

#: The rules that decide the bytes of the shards.
_OF_CONTENT = (
    *("splits", "split_by", "key", "label", "fill", "ranges"),
    *("seed", "shard_bytes", "shards"),
)

#: What was found out about a source, for the log and the page: titles, each with a text.
Facts = Sequence[tuple[str, str]]


@dataclass(frozen=True, kw_only=True)
class DatasetPlan(Plan):
    """How a data set is to be written.

    ``schema`` is None if it is known only once records are read. ``inferred`` is what is shown of
    the source; nothing of it decides what is written.
    """

    OUTPUT: ClassVar = "data set"
    STEP: ClassVar = "prepare"
    FOLDER: ClassVar = DATASETS
    VERSION: ClassVar = VERSION

    rules: PlanArguments
    schema: Schema | None
    shards_per_partition: int
    inferred: Facts = ()

    @classmethod
    def of(cls, data: Mapping[str, Any]) -> Self:
        schema = None if data["schema"] is None else schema_from_dict(data["schema"])
        return cls(**{**data, "rules": PlanArguments.from_dict(data["rules"]), "schema": schema})


def latest_of(root: Store, name: str) -> str | None:
    """The fingerprint of the data set of that name that was finalized last: the drift baseline."""
    try:
        fingerprint: str = json.loads(root.get(latest_key(name)))["fingerprint"]
    except MissingError:
        return None
    return fingerprint


def set_latest(root: Store, name: str, fingerprint: str) -> None:
    """Make this data set the baseline of later ones."""
    if latest_of(root, name) != fingerprint:
        root.put(latest_key(name), (json.dumps({"fingerprint": fingerprint}) + "\n").encode())


def run(replica: Replica) -> dict[str, Any]:
    """Plan the data set, unless the same input was prepared before.

    Returns:
        ``{"output": url, "partitions": [arguments of aerotrain.data.prepare.partition, …]}``,
        none of them where there is nothing to write.

    Raises:
        FinalError: the source is empty, or its columns are not those of the last data set.
    """
    arguments = PlanArguments.from_dict(replica.job.arguments)
    plan, partitions = make_plan(arguments)
    root = open_store(replica.job.store)
    store = root.child(plan.folder)
    if is_finished(store):
        return {"output": store.url, "partitions": []}
    print(as_text("inferred of the source:", plan.inferred))
    baseline = latest_of(root, arguments.name)
    if baseline and plan.schema is not None and not arguments.allow_drift:
        last = load_statistics(f"{root.url}/{dataset_key(baseline)}")
        before = {name: Feature.from_dict(each) for name, each in last.items()}
        if before:
            check_changes(schema_changes(before, plan.schema), arguments.drift)
    tasks = publish_plan(store, plan, partitions, arguments.partition_tasks)
    return {
        "output": store.url,
        "partitions": [
            {"output": store.url, "first": task[0], "count": len(task)} for task in tasks
        ],
    }


def make_plan(arguments: PlanArguments) -> tuple[DatasetPlan, list[Fragments]]:
    """The plan for those arguments, and the fragments of each partition.

    It lists the source and reads its schema, and writes nothing.
    """
    for name in arguments.splits:
        if path_segment(name) != name:
            raise SpecError(
                f"the split {name!r} cannot be part of a file's name; call it "
                f"{path_segment(name)!r}, or another word of letters and digits"
            )
    source = open_source(arguments.source)
    groups = list(grouped(source.fragments(), arguments.part_bytes, arguments.seed))
    if not groups:
        raise FinalError(
            f"the source {dict(arguments.source)} is empty: it lists no fragment; check that "
            "its input is where it looks for it"
        )
    schema = source.schema()
    if schema is not None:
        check_rules(arguments, schema)
        schema = source.with_missing(schema, _named_whole(arguments))
    inputs = [
        VERSION,
        schema and schema_to_dict(schema),
        {name: value for name, value in asdict(arguments).items() if name in _OF_CONTENT},
        # The fragments' own fingerprints hold the URL.
        {name: value for name, value in source.described().items() if name != "url"},
    ]
    if arguments.split_by["way"] == "stratified":
        inputs.append(len(groups) == 1)  # decides how records without keys are split
    per_partition = -(-arguments.shards // len(groups))  # so that at least ``shards`` exist
    inputs.append(per_partition)
    plan = DatasetPlan(
        source=source.described(),
        schema=schema,
        rules=arguments,
        partitions=fingerprints_of(inputs, groups),
        shards_per_partition=per_partition,
        inferred=_inferred(source, schema, arguments),
    )
    return plan, descriptions_of(groups)


def check_rules(rules: PlanArguments, schema: Schema) -> None:
    """Check that each column that a rule names exists, and has a type that the rule takes.

    Raises:
        SpecError: it does not; the message names the nearest column.
    """
    names, texts = list(schema), {name for name, each in schema.items() if each.dtype == "string"}
    single = {name for name, each in schema.items() if not each.shape}
    whole = {name for name in single if not schema[name].is_float}
    categories = [
        column
        for column, rule in rules.drift_rules.items()
        if rule != "off" and rule.get("kind") == "category"
    ]
    split_by = [rules.split_by["column"]] if "column" in rules.split_by else []
    label = [rules.label] if rules.label != LABEL else []  # a transform may make the label
    for rule, columns, accepted, what in (
        ("key", rules.key, single, "one value of each record"),
        ("split_by", split_by, single, "one value of each record"),
        ("label", label, names, ""),
        ("fill", rules.fill, names, ""),
        ("ranges", rules.ranges, set(names) - texts, "numbers"),
        ("drift_rules", rules.drift_rules, names, ""),
        ("a drift rule of kind 'category'", categories, texts | whole, "texts or single integers"),
    ):
        for column in columns:
            if column not in schema:
                raise SpecError(
                    f"{rule} names a column {column!r}, which does not exist"
                    f"{nearest(column, names)}; the columns are {', '.join(names)}"
                )
            if column not in accepted:
                raise SpecError(
                    f"{rule} names the column {column!r}, which is {schema[column]}; it takes "
                    f"{what}"
                )


def _named_whole(rules: PlanArguments) -> set[str]:
    """The columns whose integers stay integers where some are missing: a rule needs that."""
    named = {rules.label, *rules.key, *rules.fill, *rules.drift_rules}
    return named | {str(rules.split_by.get("column", rules.label))}


# --- what is shown of the source


def _inferred(source: Source, schema: Schema | None, rules: PlanArguments) -> Facts:
    """What is known of the source before its records are read."""
    rows = [("kind", str(source.described()["kind"])), *source.facts().items()]
    if schema is None:
        return [*rows, ("columns", "those of the first record of each fragment")]
    rows += _columns(source, schema)
    label = f"none; there is no column {rules.label!r}{nearest(rules.label, list(schema))}"
    if rules.label in schema:
        label = f"{rules.label}, {_type(schema[rules.label])}"
    return [*rows, ("label", label)]


def _columns(source: Source, schema: Schema) -> Iterator[tuple[str, str]]:
    declared = source.declared
    found = source.inferred.features if source.inferred else {}
    in_files = {new: name for name, new in declared.rename.items()}
    for new, feature in schema.items():
        name = in_files.get(new, new)
        notes = [_type(feature)]
        if name in declared.pad:
            notes.append("lists, padded")
        if name in declared.types:
            words = declared.types[name]
            form = words.partition(" ")[2] if isinstance(words, str) else ", ".join(words)
            notes.append(f"as 'types' declares{form and ': '}{form}")
        elif not found[name].is_float and feature.is_float:
            gap = source.gaps[new]
            notes.append(f"{gap.missing:,} of {gap.records:,} values are missing: NaN")
        elif found[name].dtype == "float64":
            notes.append("rounded from float64, which 'types' can keep")
        if name != new:
            notes.append(f"called {name} in the files")
        yield f"column {new}", "; ".join(notes)


def _type(feature: Feature) -> str:
    return " × ".join([feature.dtype, *map(str, feature.shape)])


def as_text(title: str, rows: Facts) -> str:
    """The rows as a table for a log."""
    width = max((len(name) for name, _ in rows), default=0)
    return "\n".join([title, *(f"  {name:{width}}  {text}" for name, text in rows)])
