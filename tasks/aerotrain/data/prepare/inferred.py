"""What ``plan`` found out about a source: shown in its log and on the page of the statistics.

Nothing of it decides what is written; that does the plan's schema.
"""

from collections.abc import Iterator, Mapping, Sequence

from aerotrain.contract.errors import counted, nearest
from aerotrain.contract.preparing import PlanArguments
from aerotrain.data.dataset import Feature, Schema
from aerotrain.data.sources import Source

#: Titles, each with a text.
Facts = Sequence[tuple[str, str]]


def inferred(source: Source, schema: Schema | None, rules: PlanArguments) -> Facts:
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
            notes.append("as 'types' declares" if isinstance(words, str) else ", ".join(words))
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


def rounding(rounded: Mapping[str, int], schema: Schema) -> Facts:
    """A warning for each column of which the stored type changes some values much."""
    return [(f"column {name}", _rounding(schema[name], n)) for name, n in sorted(rounded.items())]


def _rounding(feature: Feature, count: int) -> str:
    if not feature.is_float:
        return f"microseconds cut off the nanoseconds of {counted(count, 'time')}"
    return (
        f"float32 changes {counted(count, 'value')} by a half or more, or to 0; float64 in "
        "'types' of the source keeps them"
    )


def as_text(title: str, rows: Facts) -> str:
    """The rows as a table for a log."""
    width = max((len(name) for name, _ in rows), default=0)
    return "\n".join([title, *(f"  {name:{width}}  {text}" for name, text in rows)])
