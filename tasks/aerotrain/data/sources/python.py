"""A module of the user's own that reads the records, one by one."""

import inspect
import json
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np

from aerotrain.contract.errors import (
    AerotrainError,
    FinalError,
    TemporaryError,
    is_unavailable,
    nearest,
)
from aerotrain.data.dataset import Feature, Schema
from aerotrain.data.hashing import short_hash
from aerotrain.data.records.columns import RecordError, check_fits, schema_of, stacked
from aerotrain.data.sources.batch import Batch, Fragment, Rejected, in_lists
from aerotrain.data.sources.source import Source
from aerotrain.user_code import user_module

#: A record's stable key, and its features by name.
Record = tuple[str, Mapping[str, Any]]


class PythonSource(Source):
    """A module of the user's with ``list_parts()`` and ``read_part(part)``.

    A part is any JSON object, and a fragment of the source. Anything that identifies its content (a
    checksum, a version id) belongs in it: its fingerprint is a hash of it and of the code of both
    functions. A change of either prepares the data again, a change of the model does not.
    """

    required = frozenset({"module"})
    options = frozenset({"types"})

    def __init__(self, description: Mapping[str, Any]) -> None:
        super().__init__(description)
        name = description["module"]
        self.module = user_module(name, "to read the data")
        for function in ("list_parts", "read_part"):
            if not callable(getattr(self.module, function, None)):
                raise FinalError(
                    f"module {name!r} has no function {function}"
                    f"{nearest(function, dir(self.module))}; a source needs list_parts() and "
                    "read_part(part)"
                )

    def described(self) -> Mapping[str, Any]:
        return {**self.description, "module": self.module.__name__}

    def facts(self) -> dict[str, str]:
        return {"module": self.module.__name__, **super().facts()}

    def infer(self) -> None:
        """Unknown until the user's code runs; the first record of each fragment shows it."""

    def fragments(self) -> Iterator[Fragment]:
        code = [inspect.getsource(self.module.list_parts), inspect.getsource(self.module.read_part)]
        try:
            listed = [json.loads(json.dumps(dict(part))) for part in self.module.list_parts()]
        except AerotrainError:
            raise
        except Exception as error:  # user code may raise anything
            raise (TemporaryError if is_unavailable(error) else FinalError)(
                f"list_parts of module {self.module.__name__!r} did not return a list of JSON "
                f"objects: {type(error).__name__}: {error}"
            ) from error
        for number, part in enumerate(listed):
            yield Fragment(
                name=f"part {number} of module {self.module.__name__}",
                fingerprint=short_hash(json.dumps(part, sort_keys=True), *code),
                bytes=None,
                description={"part": part, "number": number},
            )

    def batches(self, description: Mapping[str, Any], schema: Schema | None) -> Iterator[Batch]:
        number = description["number"]
        records = enumerate(self._records(description["part"], number))
        known: dict[str, Feature] = {}
        for each in in_lists(records, lambda item: sum(map(_size_of, item[1][1].values()))):
            kept, rejected = [], []
            for position, (key, record) in each:
                try:
                    found = schema_of(record)
                    # A declared type is that of the data set, to which the cast follows.
                    declared = {n: found[n] for n in found.keys() & self.declared.types.keys()}
                    known = known or {**(schema or found), **declared}
                    check_fits(found, known)
                except RecordError as error:
                    reason = f"record {key!r}: {error}"
                    rejected.append(Rejected(f"part {number}", position, "position", reason))
                else:
                    kept.append((position, key, record))
            yield Batch(
                columns=stacked([record for *_, record in kept], known),
                file=f"part {number}",
                offsets=np.array([position for position, *_ in kept], np.int64),
                unit="position",
                keys=[key for _, key, _ in kept] or None,
                rejected=rejected,
            )

    def _records(self, part: Mapping[str, Any], number: int) -> Iterator[Record]:
        """The records of one part; exceptions of the user's code become our errors."""
        position, after = 0, ""
        try:
            for record in self.module.read_part(part):
                _check_is_record(record)
                yield record
                position, after = position + 1, f", after record {record[0]!r},"
        except TemporaryError:
            raise
        except Exception as error:  # user code may raise anything
            raise (TemporaryError if is_unavailable(error) else FinalError)(
                f"the record at position {position} of part {number}{after} could not be read: "
                f"{type(error).__name__}: {error}"
            ) from error


def _size_of(value: Any) -> int:
    """About how many bytes a feature of a record takes."""
    if isinstance(value, list | tuple):
        return sum(map(_size_of, value))
    return len(value) if isinstance(value, str | bytes) else getattr(value, "nbytes", 8)


def _check_is_record(record: Any) -> None:
    match record:
        case (str(), Mapping()):
            return
    raise FinalError(
        f"read_part yielded {record!r:.200}; it must yield pairs of a key, which is a string, "
        "and a mapping of features"
    )
