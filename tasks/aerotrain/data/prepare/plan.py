"""The first step of ``prepare``: list the source, and plan the partitions to write."""

from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Any

from aerotrain.contract.errors import FinalError, SpecError
from aerotrain.contract.names import path_segment
from aerotrain.contract.preparing import PlanArguments
from aerotrain.contract.strategy import nearest
from aerotrain.data.dataset import VERSION, Feature, Schema, schema_to_dict
from aerotrain.data.prepare.assignment import shards_per_partition
from aerotrain.data.prepare.grouping import grouped
from aerotrain.data.prepare.latest import latest_of
from aerotrain.data.prepare.layout import (
    PLAN,
    Plan,
    PlannedPartition,
    content_rules,
    fingerprint_of,
    folder_of,
    fragments_key,
)
from aerotrain.data.sources import Fragment, open_source
from aerotrain.data.statistics.dataset import feature_of
from aerotrain.data.statistics.drift import check_changes, schema_changes
from aerotrain.data.statistics.summary import load_statistics
from aerotrain.replica import Replica
from aerotrain.store import MANIFEST, open_store


def run(replica: Replica) -> dict[str, Any]:
    """Plan the data set, unless the same input was prepared before.

    Returns:
        ``{"dataset": url, "partitions": [arguments of aerotrain.data.prepare.partition, …]}``,
        with no partition where there is nothing to write.

    Raises:
        FinalError: the source is empty, or its columns are not those of the last data set.
    """
    arguments = PlanArguments.of(replica.job.arguments)
    plan, partitions = make_plan(arguments)
    root = open_store(replica.job.store)
    store = root.child(folder_of(plan.fingerprint))
    if store.exists(MANIFEST):
        print(f"already finalized: {store.url} holds this very input, there is nothing to write")
        return {"dataset": store.url, "partitions": []}
    baseline = latest_of(root, arguments.name)
    if baseline and plan.schema is not None and not arguments.allow_drift:
        _check_schema(f"{root.url}/{folder_of(baseline)}", plan.schema, arguments.drift)
    for number, partition in enumerate(partitions):
        store.put(fragments_key(number), partition.to_json().encode())
    plan = replace(plan, baseline=baseline)
    store.put(PLAN, plan.to_json().encode())
    fragments = sum(len(partition.fragments) for partition in partitions)
    print(f"planned {store.url}: {len(partitions)} partitions of {fragments} fragments")
    return {
        "dataset": store.url,
        "partitions": [
            {"dataset": store.url, "partition": number} for number in range(len(partitions))
        ],
    }


def _check_schema(last: str, schema: Schema, drift: float) -> None:
    """Compare the columns with those of the ``last`` data set, before any record is read."""
    before = {name: feature_of(each) for name, each in load_statistics(last).items()}
    if before:
        check_changes(schema_changes(before, schema), drift)


def make_plan(arguments: PlanArguments) -> tuple[Plan, list[PlannedPartition]]:
    """The plan for those arguments; lists the source and reads its schema, writes nothing."""
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
        check_columns(arguments, schema)
    decisive = [
        VERSION,
        None if schema is None else schema_to_dict(schema),
        content_rules(arguments),
        _read_options(source.described()),
    ]
    if arguments.split_by["way"] == "stratified":
        decisive.append(len(groups) == 1)  # decides how records without keys are split
    per_partition = shards_per_partition(arguments.shards, len(groups))
    plan = Plan(
        source=source.described(),
        schema=schema,
        rules=arguments,
        partitions=tuple(_fingerprint(group, [*decisive, per_partition]) for group in groups),
        shards_per_partition=per_partition,
    )
    return plan, [_planned(group) for group in groups]


def _read_options(source: Mapping[str, Any]) -> dict[str, Any]:
    """The options of the source without its URL, which the fragments' own names hold."""
    return {name: value for name, value in source.items() if name != "url"}


def _fingerprint(group: Iterable[Fragment], decisive: Any) -> str:
    return fingerprint_of([decisive, [fragment.fingerprint for fragment in group]])


def _planned(group: list[Fragment]) -> PlannedPartition:
    sizes = [fragment.bytes for fragment in group]
    known = [size for size in sizes if size is not None]
    return PlannedPartition(
        fragments=[fragment.description for fragment in group],
        bytes=sum(known) if len(known) == len(sizes) else None,
    )


def check_columns(rules: PlanArguments, schema: Schema) -> None:
    """Check that each column that a rule names exists, and has a type that the rule takes.

    Raises:
        SpecError: it does not; the message names the nearest column.
    """
    named = {"key": rules.key, "fill": rules.fill, "ranges": rules.ranges}
    if "column" in rules.split_by:
        named["split_by"] = [rules.split_by["column"]]
    for rule, columns in named.items():
        for column in columns:
            if column not in schema:
                raise SpecError(
                    f"{rule} names a column {column!r}, which does not exist"
                    f"{nearest(column, list(schema))}; the columns are {', '.join(schema)}"
                )
            wrong = _why_not(rule, schema[column])
            if wrong:
                raise SpecError(
                    f"{rule} names the column {column!r}, which is {schema[column]}; {wrong}"
                )


def _why_not(rule: str, feature: Feature) -> str:
    """Why the rule does not apply to such a column; empty if it does."""
    if rule in ("key", "split_by") and feature.shape:
        return "it takes one value of each record"
    if rule == "ranges" and feature.dtype == "string":
        return "it takes numbers"
    return ""
