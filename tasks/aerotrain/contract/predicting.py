"""The arguments of the steps of ``predict``."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar

from aerotrain.contract.errors import SpecError
from aerotrain.contract.preparing import PlanArguments, check_source
from aerotrain.contract.validation import Columns, Count, CountOrZero, Validated

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

    Raises:
        SpecError: a value is not accepted; the message says what was expected.
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


@dataclass(frozen=True, kw_only=True)
class PredictPartitionArguments(Validated):
    """Predict ``count`` planned partitions, from number ``first`` on."""

    TITLE: ClassVar = "a task of predictions"

    predictions: str
    first: int
    count: int


@dataclass(frozen=True, kw_only=True)
class PredictFinalizeArguments(Validated):
    """Finalize predictions whose partitions are all written."""

    TITLE: ClassVar = "finalize of predict"

    predictions: str
