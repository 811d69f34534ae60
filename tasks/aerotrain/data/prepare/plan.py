"""The first step of ``prepare``: list the source, and plan the partitions to write."""

from collections import deque
from collections.abc import Iterable, Iterator
from dataclasses import replace
from itertools import pairwise
from typing import Any

from aerotrain.contract.errors import FinalError, SpecError, counted, nearest
from aerotrain.contract.layout import PLAN, dataset_key, path_segment
from aerotrain.contract.preparing import LABEL, PlanArguments
from aerotrain.data.dataset import VERSION, Feature, Schema, load_statistics, schema_to_dict
from aerotrain.data.hashing import fingerprint_of, short_hash
from aerotrain.data.prepare.inferred import as_text, inferred
from aerotrain.data.prepare.layout import (
    Plan,
    PlannedPartition,
    content_rules,
    fragments_key,
    latest_of,
)
from aerotrain.data.sources import Fragment, open_source
from aerotrain.data.statistics.drift import check_changes, schema_changes
from aerotrain.replica import Replica
from aerotrain.store import MANIFEST, open_store
from aerotrain.store.manifest import each_of


def run(replica: Replica) -> dict[str, Any]:
    """Plan the data set, unless the same input was prepared before.

    Returns:
        ``{"dataset": url, "partitions": [arguments of aerotrain.data.prepare.partition, …]}``,
        none of them where there is nothing to write.

    Raises:
        FinalError: the source is empty, or its columns are not those of the last data set.
    """
    arguments = PlanArguments.from_dict(replica.job.arguments)
    plan, partitions = make_plan(arguments)
    root = open_store(replica.job.store)
    store = root.child(dataset_key(plan.fingerprint))
    if store.exists(MANIFEST):
        store.put(PLAN, store.get(PLAN))  # retention sees that it is used
        print(
            f"already finalized: {store.url} holds this very input, there is nothing to write, and "
            "the task partition is skipped"
        )
        return {"dataset": store.url, "partitions": []}
    print(as_text("inferred of the source:", plan.inferred))
    baseline = latest_of(root, arguments.name)
    if baseline and plan.schema is not None and not arguments.allow_drift:
        _check_schema(f"{root.url}/{dataset_key(baseline)}", plan.schema, arguments.drift)
    documents = ((fragments_key(n), each.to_json().encode()) for n, each in enumerate(partitions))
    deque(each_of(lambda document: store.put(*document), documents), maxlen=0)
    plan = replace(plan, baseline=baseline)
    store.put(PLAN, plan.to_json().encode())
    fragments = counted(sum(len(each.fragments) for each in partitions), "fragment")
    print(f"planned {store.url}: {counted(len(partitions), 'partition')} of {fragments}")
    return {
        "dataset": store.url,
        "partitions": [
            {"dataset": store.url, "first": part[0], "count": len(part)}
            for part in divided(len(partitions), arguments.partition_tasks)
        ],
    }


def divided(count: int, most: int) -> list[range]:
    """The numbers from 0 up to ``count`` in at most ``most`` ranges of nearly equal length."""
    ranges = min(count, most)
    edges = (count * each // ranges for each in range(ranges + 1))
    return [range(*each) for each in pairwise(edges)]


def _check_schema(last: str, schema: Schema, drift: float) -> None:
    """Compare the columns with those of the ``last`` data set, before any record is read."""
    before = {name: Feature.from_dict(each) for name, each in load_statistics(last).items()}
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
    groups = list(group_fragments(source.fragments(), arguments.part_bytes, arguments.seed))
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
        None if schema is None else schema_to_dict(schema),
        content_rules(arguments),
        # The fragments' own fingerprints hold the URL.
        {name: value for name, value in source.described().items() if name != "url"},
    ]
    if arguments.split_by["way"] == "stratified":
        inputs.append(len(groups) == 1)  # decides how records without keys are split
    per_partition = shards_per_partition(arguments.shards, len(groups))
    inputs.append(per_partition)
    plan = Plan(
        source=source.described(),
        schema=schema,
        rules=arguments,
        partitions=tuple(
            fingerprint_of([inputs, [fragment.fingerprint for fragment in group]])
            for group in groups
        ),
        shards_per_partition=per_partition,
        inferred=inferred(source, schema, arguments),
    )
    return plan, [
        PlannedPartition(fragments=[fragment.description for fragment in group]) for group in groups
    ]


def shards_per_partition(shards: int, partitions: int) -> int:
    """How many shards of a split each partition writes, so that at least ``shards`` exist."""
    return -(-shards // partitions)


def group_fragments(
    fragments: Iterable[Fragment], part_bytes: int, seed: int
) -> Iterator[list[Fragment]]:
    """The fragments of each partition, about ``part_bytes`` bytes of records together.

    A fragment of unknown size is a partition of its own. The others are sorted by a hash of
    ``seed`` and their names, so that records of distant files are shuffled together, and a changed
    fragment changes no partition but its own.
    """
    sized: list[Fragment] = []
    for fragment in fragments:
        if fragment.bytes is None:
            yield [fragment]
        else:
            sized.append(fragment)
    sized.sort(key=lambda fragment: short_hash(str(seed), fragment.name))
    yield from adjacent(sized, part_bytes)


def adjacent(fragments: Iterable[Fragment], part_bytes: int) -> Iterator[list[Fragment]]:
    """Fragments in their order, about ``part_bytes`` bytes of records together.

    One of unknown size is alone.
    """
    group: list[Fragment] = []
    size = 0
    for fragment in fragments:
        content = part_bytes if fragment.bytes is None else fragment.bytes
        if group and size + content > part_bytes:
            yield group
            group, size = [], 0
        group.append(fragment)
        size += content
    if group:
        yield group


def check_rules(rules: PlanArguments, schema: Schema) -> None:
    """Check that each column that a rule names exists, and has a type that the rule takes.

    Raises:
        SpecError: it does not; the message names the nearest column.
    """
    named = {
        "key": rules.key,
        "fill": rules.fill,
        "ranges": rules.ranges,
        "drift_rules": rules.drift_rules,
        "the drift rule of kind 'category'": [
            column
            for column, rule in rules.drift_rules.items()
            if rule != "off" and rule.get("kind") == "category"
        ],
    }
    if rules.label != LABEL:  # data may have no label, and a transform make one
        named["label"] = [rules.label]
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


def _named_whole(rules: PlanArguments) -> set[str]:
    """The columns whose integers stay integers where some are missing: a rule needs that."""
    named = {rules.label, *rules.key, *rules.fill, *rules.drift_rules}
    return named | {str(rules.split_by.get("column", rules.label))}


def _why_not(rule: str, feature: Feature) -> str:
    """Why the rule does not apply to such a column; empty if it does."""
    if rule in ("key", "split_by") and feature.shape:
        return "it takes one value of each record"
    if rule == "ranges" and feature.dtype == "string":
        return "it takes numbers"
    if "'category'" in rule and feature.dtype != "string" and (feature.is_float or feature.shape):
        return "it takes texts, or an integer of each record"
    return ""
