"""The second step of ``prepare``: read one part, write its shards, and say so at the end."""

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from aerotrain.contract.errors import FinalError, TemporaryError
from aerotrain.contract.steps import PartArguments
from aerotrain.prepare.layout import Plan, WrittenPart, part_key
from aerotrain.prepare.shards import PartWriter
from aerotrain.prepare.sources import Record, open_source
from aerotrain.replica import Replica
from aerotrain.store import open_store


def run(replica: Replica) -> dict[str, int]:
    """Write the shards of one part, unless it is written already.

    Returns:
        ``{"part": its number, "records": how many it has}``.

    Raises:
        FinalError: there is no such part, or one of its records cannot be taken.
    """
    arguments = PartArguments.of(replica.job.arguments)
    store = open_store(arguments.dataset)
    number, key = arguments.part, part_key(arguments.part)
    plan = Plan.read(store)
    if not 0 <= number < len(plan.parts):
        raise FinalError(
            f"there is no part {number}; the plan of {store.url} has {len(plan.parts)}, from 0"
        )
    if store.exists(key):
        written = WrittenPart.from_json(store.get(key))
        print(f"part {number} is written already, with {written.records} records: skipped")
        return {"part": number, "records": written.records}
    written = write_part(plan, number, replica.scratch)
    for split in written.splits.values():
        for shard in split.shards:
            store.upload(replica.scratch / shard.file, shard.file)
    store.put(key, written.to_json().encode())
    print(f"part {number} is written: {written.records} records")
    return {"part": number, "records": written.records}


def write_part(plan: Plan, number: int, folder: Path) -> WrittenPart:
    """Write the shards of one part of ``plan`` into ``folder``.

    Raises:
        FinalError: a record cannot be taken; the message says which.
    """
    records = _records(plan, number)
    with PartWriter(plan, number, folder) as writer:
        for position, (key, record) in enumerate(records):
            try:
                writer.add(key, record)
            except FinalError as error:
                raise FinalError(
                    f"record {key!r}, at position {position} of part {number}, cannot be taken: "
                    f"{error}"
                ) from error
        return writer.written()


def _records(plan: Plan, number: int) -> Iterator[Record]:
    """The records of one part, with whatever the user's code raises explained."""
    source = open_source(plan.source)
    position, after = 0, ""
    try:
        for record in source.read(plan.parts[number]):
            _check_is_record(record)
            yield record
            position, after = position + 1, f", after record {record[0]!r},"
    except TemporaryError:
        raise
    except Exception as error:  # it is the user's code and may raise anything
        lost = isinstance(error, ConnectionError | TimeoutError)
        raise (TemporaryError if lost else FinalError)(
            f"the record at position {position} of part {number}{after} could not be read: "
            f"{type(error).__name__}: {error}"
        ) from error


def _check_is_record(record: Any) -> None:
    match record:
        case (str(), Mapping()):
            return
    raise FinalError(
        f"read_part gave {record!r:.200}; it must give pairs of a key, which is a string, and "
        "a mapping of features"
    )
