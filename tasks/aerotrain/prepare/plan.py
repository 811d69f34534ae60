"""The first step of ``prepare``: which parts there are, and whether anything is to do."""

from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Any

from aerotrain.contract.errors import FinalError, SpecError
from aerotrain.contract.names import path_segment
from aerotrain.contract.preparing import PlanArguments
from aerotrain.contract.strategy import nearest
from aerotrain.dataset import VERSION, Feature, Schema, schema_to_dict
from aerotrain.prepare.assignment import shards_per_part
from aerotrain.prepare.grouping import grouped
from aerotrain.prepare.latest import latest_of
from aerotrain.prepare.layout import (
    PLAN,
    Plan,
    PlannedPart,
    fingerprint_of,
    folder_of,
    pieces_key,
    written_by,
)
from aerotrain.replica import Replica
from aerotrain.sources import Piece, open_source
from aerotrain.statistics.comparing import check_changes, schema_changes
from aerotrain.statistics.dataset import feature_of
from aerotrain.statistics.summary import load_statistics
from aerotrain.store import MANIFEST, open_store


def run(replica: Replica) -> dict[str, Any]:
    """Plan the data set, unless the same input was sealed before.

    Returns:
        ``{"dataset": url, "parts": [arguments of aerotrain.prepare.part, …]}``, with no part
        where there is nothing to write.

    Raises:
        FinalError: the source has no piece, or other columns than the data set sealed last.
    """
    arguments = PlanArguments.of(replica.job.arguments)
    plan, parts = make_plan(arguments)
    root = open_store(replica.job.store)
    store = root.child(folder_of(plan.fingerprint))
    if store.exists(MANIFEST):
        print(f"already sealed: {store.url} holds this very input, there is nothing to write")
        return {"dataset": store.url, "parts": []}
    baseline = latest_of(root, arguments.name)
    if baseline and plan.schema is not None and not arguments.allow_drift:
        _check_schema(f"{root.url}/{folder_of(baseline)}", plan.schema, arguments.drift)
    for number, part in enumerate(parts):
        store.put(pieces_key(number), part.to_json().encode())
    plan = replace(plan, baseline=baseline)
    store.put(PLAN, plan.to_json().encode())
    pieces = sum(len(part.pieces) for part in parts)
    print(f"planned {store.url}: {len(parts)} parts of {pieces} pieces")
    return {
        "dataset": store.url,
        "parts": [{"dataset": store.url, "part": number} for number in range(len(parts))],
    }


def _check_schema(last: str, schema: Schema, drift: float) -> None:
    """Refuse other columns than those of the ``last`` data set, before anything is read."""
    before = {name: feature_of(each) for name, each in load_statistics(last).items()}
    if before:
        check_changes(schema_changes(before, schema), drift)


def make_plan(arguments: PlanArguments) -> tuple[Plan, list[PlannedPart]]:
    """What those arguments ask for; lists the source and looks into it, and writes nothing."""
    for name in arguments.splits:
        if path_segment(name) != name:
            raise SpecError(
                f"the split {name!r} cannot be part of a file's name; call it "
                f"{path_segment(name)!r}, or another word of letters and digits"
            )
    source = open_source(arguments.source)
    groups = list(grouped(source.pieces(), arguments.part_bytes, arguments.seed))
    if not groups:
        raise FinalError(
            f"the source {dict(arguments.source)} is empty: it lists no part; see whether its "
            "input is where it looks for it"
        )
    schema = source.schema()
    if schema is not None:
        check_columns(arguments, schema)
    settled = [
        VERSION,
        None if schema is None else schema_to_dict(schema),
        written_by(arguments),
        _reading(source.described()),
    ]
    if arguments.split_by["way"] == "stratified":
        settled.append(len(groups) == 1)  # of several, records without keys are divided otherwise
    per_part = shards_per_part(arguments.shards, len(groups))
    plan = Plan(
        source=source.described(),
        schema=schema,
        rules=arguments,
        parts=tuple(_fingerprint(group, [*settled, per_part]) for group in groups),
        shards_per_part=per_part,
    )
    return plan, [_planned(group) for group in groups]


def _reading(source: Mapping[str, Any]) -> dict[str, Any]:
    """How the source reads, without where it looks: the pieces themselves tell that."""
    return {name: value for name, value in source.items() if name != "url"}


def _fingerprint(group: Iterable[Piece], settled: Any) -> str:
    return fingerprint_of([settled, [piece.fingerprint for piece in group]])


def _planned(group: list[Piece]) -> PlannedPart:
    sizes = [piece.bytes for piece in group]
    known = [size for size in sizes if size is not None]
    return PlannedPart(
        pieces=[piece.description for piece in group],
        bytes=sum(known) if len(known) == len(sizes) else None,
    )


def check_columns(rules: PlanArguments, schema: Schema) -> None:
    """Make sure that every column that a rule names is there, and holds what the rule takes.

    Raises:
        SpecError: one does not; the message holds the nearest that is there.
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
    """Why a rule cannot be for such a column; empty where it can."""
    if rule in ("key", "split_by") and feature.shape:
        return "it takes one value of each record"
    if rule == "ranges" and feature.dtype == "string":
        return "it takes numbers"
    return ""
