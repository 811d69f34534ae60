"""The ways to divide records into splits, in one table."""

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, date, datetime
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from aerotrain.contract.errors import SpecError
from aerotrain.contract.preparing import PlanArguments
from aerotrain.data.hashing import Hashes, hashes_of, mixed, uniform
from aerotrain.data.records.columns import Column, Columns
from aerotrain.data.sources.batch import SourceError

#: The index of each record's split among the splits sorted by name; -1 if it has none.
SplitNumbers = NDArray[np.int8]

NO_SPLIT = -1


def assign_splits(
    columns: Columns, file: str, hashes: Hashes, rules: PlanArguments
) -> SplitNumbers:
    """The split of each record of one file, by the way that the rules name.

    For ``stratified`` it is that by the hash, which ``Stratifier`` may replace once all records of
    the partition are read.
    """
    match rules.split_by["way"]:
        case "column":
            return _by_column(columns[rules.split_by["column"]], rules)
        case "time":
            return _by_time(columns[rules.split_by["column"]], rules)
        case "folder":
            return np.full(len(hashes), _of_folder(file, rules), np.int8)
    return splits_of(hashes, rules.splits)


def splits_of(hashes: Hashes, splits: Mapping[str, float]) -> SplitNumbers:
    """The split of each record by its hash.

    The shares of the splits divide [0, 1) into intervals; a record's hash falls into one of them.
    """
    ends = np.cumsum([splits[name] for name in sorted(splits)])
    found = np.searchsorted(ends, uniform(hashes), side="right")
    # Rounding may let the shares add up to slightly less than 1.
    return np.minimum(found, len(splits) - 1).astype(np.int8)


def _by_column(column: Column, rules: PlanArguments) -> SplitNumbers:
    names = pa.array([name.encode() for name in sorted(rules.splits)], pa.large_binary())
    found = pc.index_in(texts_of(column), value_set=names)
    return found.fill_null(NO_SPLIT).to_numpy(zero_copy_only=False).astype(np.int8)


def _of_folder(file: str, rules: PlanArguments) -> int:
    folders = file.split("/")[:-1]
    names = [name for name in sorted(rules.splits) if name in folders]
    if len(names) != 1:
        raise SourceError(
            f"{file} is in the folder of {' and of '.join(names) or 'no split'}; the splits are "
            f"{', '.join(sorted(rules.splits))}, and each file must be in the folder of one"
        )
    return sorted(rules.splits).index(names[0])


def _by_time(column: Column, rules: PlanArguments) -> SplitNumbers:
    until = rules.split_by["until"]
    ends = sorted((_timestamp(end, column), name) for name, end in until.items() if end is not None)
    names = [name for _, name in ends] + [name for name, end in until.items() if end is None]
    numbers = np.array([sorted(rules.splits).index(name) for name in names] + [NO_SPLIT], np.int8)
    values = column.values if column.is_text else pa.array(column.values)
    past = np.zeros(len(column), np.int64)
    for end, _ in ends:
        past += pc.greater_equal(values, end).to_numpy(zero_copy_only=False)
    return numbers[past]


def _timestamp(end: Any, column: Column) -> Any:
    """The end of a split in the unit of the column's values."""
    if column.is_text:
        return str(end).encode()
    if not isinstance(end, str):
        return end
    try:
        moment = datetime.fromisoformat(end)
    except ValueError as error:
        raise SpecError(f"split_by 'time' has {end!r}, which is not a time: {error}") from error
    moment = moment if moment.tzinfo else moment.replace(tzinfo=UTC)
    if column.feature.dtype == "int32":
        return (moment.date() - date(1970, 1, 1)).days
    return int(moment.timestamp() * 1_000_000)


class Stratifier:
    """Divides each class by the shares, to one record, given its records in shuffle order.

    ``counts`` has the number of records of each class. Records of one hash stay together. Counts
    are rounded at random, so that a class with few records in each of many partitions is divided by
    the shares too. The first record of a class decides: further records of other classes move none
    of its records, and of its own class few.
    """

    def __init__(self, counts: Mapping[int, int], splits: Mapping[str, float]) -> None:
        ends = np.cumsum([splits[name] for name in sorted(splits)])
        self._last = len(splits) - 1
        self._classes = {
            stratum: _Class(np.round(ends * count, 6)) for stratum, count in counts.items()
        }

    def splits_of(self, strata: Hashes, hashes: Hashes) -> SplitNumbers:
        """The splits of the next records, by their classes and hashes."""
        numbers = np.empty(len(hashes), np.int64)
        order = np.argsort(strata, kind="stable")
        for rows in np.split(order, np.flatnonzero(np.diff(strata[order])) + 1):
            if len(rows):
                each = self._classes[int(strata[rows[0]])]
                if each.records == 0:
                    each.cuts = np.floor(each.cuts + uniform(mixed(hashes[rows[:1]])))
                numbers[rows] = np.searchsorted(each.cuts, each.ranks(hashes[rows]), "right")
        return np.minimum(numbers, self._last).astype(np.int8)


@dataclass
class _Class:
    """The ranks at which the splits of one class end, to be rounded, and its records so far."""

    cuts: NDArray[np.float64]
    records: int = 0
    last_hash: np.uint64 | None = None
    last_rank: int = 0

    def ranks(self, hashes: Hashes) -> NDArray[np.int64]:
        """The rank of each of the next records; those of one hash have that of the first."""
        ranks = np.arange(self.records, self.records + len(hashes))
        is_new = np.append(hashes[0] != self.last_hash, hashes[1:] != hashes[:-1])
        if not is_new[0]:
            ranks[0] = self.last_rank
            is_new[0] = True
        ranks = np.maximum.accumulate(np.where(is_new, ranks, 0))
        self.records += len(hashes)
        self.last_hash, self.last_rank = hashes[-1], int(ranks[-1])
        return ranks


def strata_of(column: Column) -> Hashes:
    """The class of each record as a number; strings are hashed."""
    if not column.is_text:
        return column.values.astype(np.int64).view(np.uint64)
    encoded = column.values.dictionary_encode()
    hashes = hashes_of(encoded.dictionary.to_pylist())
    return hashes[encoded.indices.to_numpy(zero_copy_only=False)]


def texts_of(column: Column) -> pa.LargeBinaryArray:
    """The values of a scalar column as text."""
    if column.is_text:
        return column.values
    return pa.array(column.values).cast(pa.large_string()).cast(pa.large_binary())
