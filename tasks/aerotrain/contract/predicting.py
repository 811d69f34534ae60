"""The arguments of the steps of ``predict``."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar

from aerotrain.contract.errors import SpecError
from aerotrain.contract.options import Arguments, check_types
from aerotrain.contract.preparing import PlanArguments

#: Columns of predictions that say where a record was read, and its key if the source has keys.
FILE, OFFSET, KEY = "source_file", "source_offset", "source_key"


@dataclass(frozen=True, kw_only=True)
class PredictArguments(Arguments):
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
    keep: Sequence[str] = ()
    fill: Mapping[str, Any] = field(default_factory=dict)
    max_rejected: int = 0
    batch_size: int = 256
    part_bytes: int = 256 * 2**20
    partition_tasks: int = 128

    def __post_init__(self) -> None:
        check_types(self, model=str, source=Mapping, fill=Mapping)
        check_types(self, max_rejected=int, batch_size=int, part_bytes=int, partition_tasks=int)
        if "kind" not in self.source:
            raise SpecError("the source names no kind; add one, such as {'kind': 'parquet'}")
        if self.dag_id is not None and not isinstance(self.dag_id, str):
            raise SpecError(f"dag_id of predict must be the id of a DAG, got {self.dag_id!r}")
        if isinstance(self.keep, str) or not all(isinstance(each, str) for each in self.keep):
            raise SpecError(f"keep of predict must be a list of columns, got {self.keep!r}")
        if len(set(self.keep)) < len(self.keep):
            raise SpecError(f"keep of predict names a column twice: {', '.join(self.keep)}")
        least = {"max_rejected": 0, "batch_size": 1, "part_bytes": 1, "partition_tasks": 1}
        for name, minimum in least.items():
            if (value := getattr(self, name)) < minimum:
                raise SpecError(f"{name} of predict must be {minimum} or more, got {value}")

    @property
    def rules(self) -> PlanArguments:
        """The rules by which records are cast, as ``prepare`` does; none has to have a label."""
        return PlanArguments(source=self.source, fill=self.fill, label="")


@dataclass(frozen=True, kw_only=True)
class PredictPartitionArguments(Arguments):
    """Predict ``count`` planned partitions, from number ``first`` on."""

    TITLE: ClassVar = "a task of predictions"

    predictions: str
    first: int
    count: int


@dataclass(frozen=True, kw_only=True)
class PredictFinalizeArguments(Arguments):
    """Finalize predictions whose partitions are all written."""

    TITLE: ClassVar = "finalize of predict"

    predictions: str
