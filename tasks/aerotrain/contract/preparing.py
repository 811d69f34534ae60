"""The arguments of the steps of ``prepare`` and ``predict``, which read a source by partitions."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Annotated, Any, ClassVar

from aerotrain.contract.errors import SpecError, nearest
from aerotrain.contract.options import Section, option
from aerotrain.contract.validation import (
    Columns,
    Count,
    CountOrZero,
    Limits,
    Positive,
    Validated,
    is_number,
)

#: The greatest least number of shards. A data set has more of them if ``shard_bytes`` asks for it.
MOST_SHARDS = 10_000

#: The keys of a folder that are no data: with a name that begins with ``_`` or a dot.
HIDDEN = re.compile(r"(^|/)(_|\.(?!\.))")

#: The column that is the label unless another one is named.
LABEL = "label"
#: How the values of a column are compared with those of the last data set; keys and times are not.
DRIFT_KINDS = ("number", "category", "key", "time")

#: The ways to divide records into splits, and the options that each needs.
SPLIT_WAYS: Mapping[str, frozenset[str]] = {
    "key": frozenset(),
    "stratified": frozenset({"column"}),
    "column": frozenset({"column"}),
    "folder": frozenset(),
    "time": frozenset({"column", "until"}),
}


_Range = Annotated[Sequence[float], Limits(form="its least and its greatest value")]


@dataclass(frozen=True, kw_only=True)
class PlanArguments(Validated):
    """Plan a data set: the partitions of its source, and the rules by which they are written.

    ``source`` names a kind of source and what that kind needs, such as
    ``{"kind": "parquet", "url": "s3://bucket/table/"}``. ``name`` distinguishes the data sets of
    one pipeline. ``splits`` gives each split its share of the records, by the hash of their keys.
    ``split_by`` divides them in another ``way`` of ``SPLIT_WAYS``:
    ``{"way": "stratified", "column": "label"}``, ``{"way": "column", "column": "fold"}`` whose
    values are the splits' names, ``{"way": "folder"}`` by a folder in the file's path, or
    ``{"way": "time", "column": "day", "until": {"train": "2026-01-01", "test": null}}``.
    ``stratified`` is exact to one record for each class and partition if there is a ``key`` or
    one partition; otherwise records are divided by the hash of their content, and each class has
    its shares on average.

    ``key`` names the columns whose values together identify a record; without a key, equal
    records count as the same one and go to the same split. ``fill`` has values for missing
    entries of columns, ``ranges`` the least and the greatest accepted values. ``label`` is the
    column that a model is to predict, whose values are counted as classes and may not be missing;
    if no column is called ``label``, a transform has to make the target of others. ``seed``
    decides the order of records. ``drift_rules`` says how single columns are compared with the
    last data set: ``{"price": {"limit": 0.4}, "zip": {"kind": "category"}, "batch": "off"}``, with
    a limit other than ``drift``, or a kind of ``DRIFT_KINDS`` other than the one that is
    recognized. All other fields are options; their help texts describe them.
    """

    TITLE: ClassVar = "prepare"

    source: Mapping[str, Any]
    name: str = "data"
    splits: Mapping[str, Positive] = field(
        default_factory=lambda: {"train": 0.7, "validation": 0.1, "test": 0.2}
    )
    split_by: Mapping[str, Any] = field(default_factory=lambda: {"way": "key"})
    key: Columns = ()
    label: str = LABEL
    fill: Mapping[str, Any] = field(default_factory=dict)
    ranges: Mapping[str, _Range] = field(default_factory=dict)
    max_rejected: int = option(
        0,
        title="Rejected records",
        help="Number of records that may go to quarantine before the run fails.",
        section=Section.DATA,
        minimum=0,
        in_form=False,
    )
    shards: int = option(
        4,
        title="Shards",
        help="Least number of TFRecord files of each split.",
        section=Section.DATA,
        minimum=1,
        maximum=MOST_SHARDS,
    )
    shard_bytes: int = option(
        128 * 2**20,
        title="Shard size (bytes)",
        help="Target size of a shard.",
        section=Section.DATA,
        minimum=1,
        in_form=False,
    )
    part_bytes: int = option(
        2**30,
        title="Partition size (bytes)",
        help="Target size of a partition, the records that are prepared as one unit.",
        section=Section.DATA,
        minimum=1,
        in_form=False,
    )
    partition_tasks: int = option(
        128,
        title="Partition tasks",
        help="Most mapped tasks of prepare, which share the partitions. Airflow accepts at most "
        "its setting max_map_length, by default 1024.",
        section=Section.DATA,
        minimum=1,
        in_form=False,
    )
    seed: int = 0
    drift_rules: Mapping[str, Any] = field(default_factory=dict)
    drift: float = option(
        0.2,
        title="Drift limit",
        help="Greatest accepted distance of a column from that of the last data set.",
        section=Section.DATA,
        above=0,
        maximum=1,
        in_form=False,
    )
    allow_drift: bool = option(
        False,
        title="Allow drift",
        help="Accept data that differ from those of the last run, and compare later runs with "
        "these.",
        section=Section.DATA,
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        check_source(self.source)
        if abs(sum(self.splits.values()) - 1) > 1e-6:
            raise SpecError(f"the shares of the splits must add up to 1, got {dict(self.splits)}")
        self._check_ranges()
        self._check_drift_rules()
        self._check_split_by()

    def _check_ranges(self) -> None:
        for column, limits in self.ranges.items():
            if len(limits) != 2 or limits[0] > limits[1]:
                raise SpecError(
                    f"ranges[{column!r}] must be its least and its greatest value, got {limits!r}"
                )

    def _check_drift_rules(self) -> None:
        for column, rule in self.drift_rules.items():
            if not _is_drift_rule(rule):
                raise SpecError(
                    f"the drift rule of {column!r} must be 'off', or an object with a limit above "
                    f"0 up to 1, a kind of {', '.join(DRIFT_KINDS)}, or both, got {rule!r}"
                )

    def _check_split_by(self) -> None:
        way = str(self.split_by.get("way"))
        if way not in SPLIT_WAYS:
            raise SpecError(
                f"split_by has no way {way!r}{nearest(way, SPLIT_WAYS)}; the ways are "
                f"{', '.join(SPLIT_WAYS)}"
            )
        given = set(self.split_by) - {"way"}
        if given != SPLIT_WAYS[way]:
            raise SpecError(
                f"split_by {way!r} takes {', '.join(sorted(SPLIT_WAYS[way])) or 'nothing else'}, "
                f"got {', '.join(sorted(given)) or 'nothing'}"
            )
        if way == "time" and not isinstance(self.split_by["until"], Mapping):
            raise SpecError(
                "the until of split_by 'time' must be an object of the moment at which each split "
                f"ends, got {self.split_by['until']!r}"
            )
        if way == "time" and set(self.split_by["until"]) != set(self.splits):
            raise SpecError(
                f"split_by 'time' ends {', '.join(self.split_by['until'])}, where the splits are "
                f"{', '.join(self.splits)}; give each split the moment before which it ends, the "
                "last one null"
            )


def check_source(source: Mapping[str, Any]) -> None:
    """Check that the description of a source names its kind.

    Raises:
        SpecError: it does not.
    """
    if "kind" not in source:
        raise SpecError("the source names no kind; add one, such as {'kind': 'parquet'}")


def _is_drift_rule(rule: object) -> bool:
    if not isinstance(rule, Mapping):
        return rule == "off"
    limit = rule.get("limit", 1)
    return (
        {"limit", "kind"} >= rule.keys()
        and rule.get("kind", "key") in DRIFT_KINDS
        and is_number(limit)
        and 0 < limit <= 1
    )


@dataclass(frozen=True, kw_only=True)
class FinalizeArguments(Validated):
    """Finalize a data set or predictions at the URL ``output``; all partitions are written."""

    TITLE: ClassVar = "finalize"

    output: str


@dataclass(frozen=True, kw_only=True)
class PartitionArguments(FinalizeArguments):
    """Write ``count`` planned partitions of ``output``, from number ``first`` on."""

    TITLE: ClassVar = "a task of partitions"

    first: int
    count: int


#: Columns of predictions that say where a record was read, and its key if the source has keys.
FILE, OFFSET, KEY = "source_file", "source_offset", "source_key"


@dataclass(frozen=True, kw_only=True)
class PredictArguments(Validated):
    """Predict every record of a source by an exported model, and write the predictions as Parquet.

    ``model`` is the URL of an exported version, or ``serving`` for the served one of the DAG
    ``dag_id``, by default of this one. ``source`` is a source of ``prepare``, with or without
    labels. The columns ``keep`` are copied to the predictions as they were read. ``fill`` has
    values for missing entries of columns that the model needs. ``max_rejected`` records may lack a
    value, or not parse, before the run fails. ``batch_size`` records are predicted at once,
    ``part_bytes`` bytes of records are written to one file, and ``partition_tasks`` is the most
    mapped tasks that share the files.
    """

    TITLE: ClassVar = "predict"

    model: str
    source: Mapping[str, Any]
    dag_id: str | None = None
    keep: Columns = ()
    fill: Mapping[str, Any] = field(default_factory=dict)
    max_rejected: CountOrZero = 0
    batch_size: Count = 256
    part_bytes: Count = 256 * 2**20
    partition_tasks: Count = 128

    def __post_init__(self) -> None:
        super().__post_init__()
        check_source(self.source)
        if len(set(self.keep)) < len(self.keep):
            raise SpecError(f"keep of predict names a column twice: {', '.join(self.keep)}")

    @property
    def rules(self) -> PlanArguments:
        """The rules by which records are cast, as ``prepare`` does; none has to have a label."""
        return PlanArguments(source=self.source, fill=self.fill, label="")
