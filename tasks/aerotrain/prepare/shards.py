"""The shards of one part, while they are written to this machine's disk."""

from collections import Counter
from collections.abc import Mapping
from contextlib import AbstractContextManager, ExitStack
from pathlib import Path
from types import TracebackType
from typing import IO, Any, Self

from aerotrain.contract.errors import FinalError
from aerotrain.dataset import Feature, Shard, Split
from aerotrain.prepare.assignment import shard_name, shard_of, split_of
from aerotrain.prepare.layout import Plan, WrittenPart
from aerotrain.records import check_fits, encode, frame, schema_of
from aerotrain.store import StoredFile

#: The feature whose values are counted as classes, if it is one integer.
LABEL = "label"


class PartWriter(AbstractContextManager["PartWriter"]):
    """Takes the records of one part into files below ``folder``, one a shard.

    A shard that gets no record is no file. The first record's schema is everyone's.
    """

    def __init__(self, plan: Plan, part: int, folder: Path) -> None:
        self._plan = plan
        self._part = part
        self._folder = folder
        self._schema: dict[str, Feature] | None = None
        self._keys: set[str] = set()
        self._files: dict[str, IO[bytes]] = {}
        self._records: dict[str, Counter[str]] = {split: Counter() for split in plan.splits}
        self._classes: dict[str, Counter[int]] = {split: Counter() for split in plan.splits}
        self._open = ExitStack()

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._open.close()

    def __enter__(self) -> Self:
        return self

    def add(self, key: str, record: Mapping[str, Any]) -> None:
        """Write one record into the shard that its key chooses.

        Raises:
            FinalError: the key came before, or the record is not like the first.
        """
        if key in self._keys:
            raise FinalError("its key came before; give every record a key of its own")
        self._keys.add(key)
        if self._schema is None:
            self._schema = schema_of(record)
        check_fits(record, self._schema)
        plan = self._plan
        split = split_of(key, plan.splits)
        shard = shard_of(key, plan.shards_per_part)
        name = shard_name(split, self._part, len(plan.parts), shard, plan.shards_per_part)
        self._file(name).write(frame(encode(record, self._schema)))
        self._records[split][name] += 1
        if _has_classes(self._schema):
            self._classes[split][int(record[LABEL])] += 1

    def written(self) -> WrittenPart:
        """What has been written, each file whole on this machine's disk."""
        self._open.close()
        splits = {
            split: Split(
                shards=tuple(self._shard(name, count) for name, count in sorted(counts.items())),
                classes=dict(self._classes[split]),
            )
            for split, counts in self._records.items()
        }
        return WrittenPart(schema=self._schema, splits=splits)

    def _file(self, name: str) -> IO[bytes]:
        if name not in self._files:
            self._files[name] = self._open.enter_context((self._folder / name).open("wb"))
        return self._files[name]

    def _shard(self, name: str, records: int) -> Shard:
        stored = StoredFile.of(self._folder / name)
        return Shard(file=name, records=records, bytes=stored.bytes, sha256=stored.sha256)


def _has_classes(schema: Mapping[str, Feature]) -> bool:
    label = schema.get(LABEL)
    return label is not None and label.shape == () and "int" in label.dtype
