"""Work on a source in partitions, in three idempotent steps: prepare a data set, or predict.

A source lists its *fragments*; ``plan`` groups them into *partitions*, which ``partition`` writes,
and ``finalize`` writes the manifest when all of them are written. A partition is written completely
or not at all, so a task that was interrupted goes on with the first one that is missing. One that
an earlier output has is copied from there.

In the folder of the output, such as ``datasets/<fingerprint>/``: ``plan.json`` and, for each
partition, ``plan/00003.json`` with its fragments come first; ``parts/00003.json`` comes after the
files of that partition, such as ``quarantine/00003.jsonl`` of its rejected records;
``manifest.json`` comes last. At the top of the store, ``parts/<fingerprint of a partition>.json``
says where that partition was written.
"""

import json
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from itertools import pairwise
from pathlib import Path, PurePath
from typing import Any, ClassVar, Self, TextIO

from aerotrain.contract.errors import FinalError, counted
from aerotrain.contract.layout import PARTS, PLAN, QUARANTINE
from aerotrain.data.hashing import fingerprint_of, short_hash
from aerotrain.data.sources.batch import Fragment, Rejected
from aerotrain.replica import Replica
from aerotrain.store import MANIFEST, MissingError, Store, open_store
from aerotrain.store.manifest import each_of

#: How many rejected records, or missing partitions, an error names.
SHOWN = 10

#: Stands for the number of its partition in the key of a file.
NUMBER = "{number}"

_FRAGMENTS = f"plan/{NUMBER}.json"
_QUARANTINE = f"{QUARANTINE}{NUMBER}.jsonl"

#: The fragments of one partition.
Fragments = Sequence[Mapping[str, Any]]


def key_of(file: str, partition: int) -> str:
    """The key of a file of the partition, such as ``quarantine/00003.jsonl``."""
    return file.replace(NUMBER, f"{partition:05d}")


def quarantine_key(partition: int) -> str:
    """The key of the partition's rejected records, as JSON lines."""
    return key_of(_QUARANTINE, partition)


def partition_key(partition: int) -> str:
    """The key of the document that exists once all files of the partition are written."""
    return key_of(f"{PARTS}/{NUMBER}.json", partition)


@dataclass(frozen=True, kw_only=True)
class Plan:
    """What is to be written: the source, as it was listed, by which rules, and the partitions.

    ``partitions`` are their fingerprints, hashes of everything that decides what is written.
    """

    #: What is written, by which step, into which folder, and the version of its documents.
    OUTPUT: ClassVar[str]
    STEP: ClassVar[str]
    FOLDER: ClassVar[str]
    VERSION: ClassVar[int]

    source: Mapping[str, Any]
    rules: Any
    partitions: tuple[str, ...]

    @property
    def fingerprint(self) -> str:
        """The name of the output."""
        return fingerprint_of([self.VERSION, self.partitions])

    @property
    def folder(self) -> str:
        """The key of the output's folder."""
        return f"{self.FOLDER}/{self.fingerprint}"

    def to_json(self) -> str:
        document = {"version": self.VERSION, **asdict(self)}
        return json.dumps(document, sort_keys=True, indent=1) + "\n"

    @classmethod
    def of(cls, data: Mapping[str, Any]) -> Self:
        """The plan of a document, without its version."""
        return cls(**data)

    @classmethod
    def read(cls, store: Store) -> Self:
        """The plan of the output in ``store``.

        Raises:
            FinalError: nothing is planned there, or by another version of aerotrain.
        """
        try:
            data = json.loads(store.get(PLAN))
        except MissingError as error:
            raise FinalError(
                f"no {cls.OUTPUT} is planned at {store.url}; run {cls.STEP} for its source"
            ) from error
        if (version := data.pop("version")) != cls.VERSION:
            raise FinalError(
                f"the {cls.OUTPUT} at {store.url} was planned for version {version} of the "
                f"format, this is version {cls.VERSION}; plan it again"
            )
        return cls.of({**data, "partitions": tuple(data["partitions"])})


@dataclass(frozen=True, kw_only=True)
class WrittenPartition:
    """What was written of one partition.

    ``files`` are the keys of its files, with ``NUMBER`` in place of its number. ``about`` is what
    ``finalize`` has to know of it. ``rejected`` counts the rejected records, ``first_rejected`` are
    some of them.
    """

    records: int
    files: Sequence[str]
    about: Mapping[str, Any]
    rejected: int = 0
    first_rejected: Sequence[Rejected] = ()

    def to_json(self) -> str:
        return json.dumps(asdict(self), sort_keys=True, indent=1) + "\n"

    @classmethod
    def read(cls, store: Store, key: str) -> Self | None:
        """What ``to_json`` wrote; None if it is not there."""
        try:
            data = json.loads(store.get(key))
        except MissingError:
            return None
        first = [Rejected(**each) for each in data.pop("first_rejected")]
        return cls(**data, first_rejected=first)


@dataclass(kw_only=True)
class Rejections:
    """How many records were rejected, the first of them, and where all are listed.

    Raises:
        FinalError: more than ``most`` are, which ``check`` finds; the message names the first.
    """

    most: int
    url: str
    count: int = 0
    first: Sequence[Rejected] = ()

    def check(self) -> None:
        if self.count <= self.most:
            return
        listed = "\n".join(f"  {each.file} at {each.place}: {each.reason}" for each in self.first)
        were = f"{counted(self.count, 'record')} {'was' if self.count == 1 else 'were'}"
        raise FinalError(
            f"at least {were} rejected, and max_rejected is {self.most}:\n{listed}\n"
            f"correct them, or raise max_rejected; {self.url} lists them"
        )


@dataclass(kw_only=True)
class Quarantine(Rejections):
    """Writes rejected records, with their files, offsets and reasons, to ``file`` as JSON lines.

    The file is uploaded to ``url`` later.
    """

    file: TextIO

    def add(self, rejected: Sequence[Rejected]) -> None:
        """Write rejected records to the file, and check that there are not too many by now."""
        for each in rejected:
            self.file.write(json.dumps(asdict(each), ensure_ascii=False) + "\n")
        self.count += len(rejected)
        self.first = [*self.first, *rejected][:SHOWN]
        if len(self.first) == SHOWN:
            self.check()


# --- plan


def grouped(
    fragments: Iterable[Fragment], part_bytes: int, seed: int | None = None
) -> Iterator[list[Fragment]]:
    """The fragments of each partition, about ``part_bytes`` bytes of records together.

    A fragment of unknown size is a partition of its own. With a ``seed``, the others are sorted by
    a hash of it and their names, so that records of distant files are shuffled together, and a
    changed fragment changes no partition but its own.
    """

    def place(fragment: Fragment) -> str:
        return "" if fragment.bytes is None else short_hash(str(seed), fragment.name)

    group: list[Fragment] = []
    size = 0
    for fragment in fragments if seed is None else sorted(fragments, key=place):
        content = part_bytes if fragment.bytes is None else fragment.bytes
        if group and size + content > part_bytes:
            yield group
            group, size = [], 0
        group.append(fragment)
        size += content
    if group:
        yield group


def fingerprints_of(inputs: Any, groups: Sequence[Sequence[Fragment]]) -> tuple[str, ...]:
    """The fingerprints of partitions, which ``inputs`` and their fragments decide."""
    return tuple(
        fingerprint_of([inputs, [fragment.fingerprint for fragment in group]]) for group in groups
    )


def descriptions_of(groups: Sequence[Sequence[Fragment]]) -> list[Fragments]:
    """The fragments of partitions, as a source reads them."""
    return [[fragment.description for fragment in group] for group in groups]


def is_finished(store: Store) -> bool:
    """Whether the output in ``store`` is finalized; if so, retention sees that it is used."""
    if not store.exists(MANIFEST):
        return False
    store.put(PLAN, store.get(PLAN))
    print(
        f"already finalized: {store.url} holds the output of this very input, there is nothing to "
        "write, and the task partition is skipped"
    )
    return True


def publish_plan(
    store: Store, plan: Plan, partitions: Sequence[Fragments], most_tasks: int
) -> list[range]:
    """Write the plan of ``partitions``, and return the numbers of those of each mapped task."""
    deque(each_of(lambda n: _put_fragments(store, n, partitions[n]), range(len(partitions))), 0)
    store.put(PLAN, plan.to_json().encode())
    fragments = counted(sum(map(len, partitions)), "fragment")
    print(f"planned {store.url}: {counted(len(partitions), 'partition')} of {fragments}")
    tasks = min(len(partitions), most_tasks)
    edges = (len(partitions) * edge // tasks for edge in range(tasks + 1))
    return [range(*ends) for ends in pairwise(edges)]


def _put_fragments(store: Store, partition: int, fragments: Fragments) -> None:
    store.put(key_of(_FRAGMENTS, partition), (json.dumps(fragments) + "\n").encode())


def read_fragments(store: Store, partition: int) -> Fragments:
    """The fragments of a planned partition."""
    fragments: Fragments = json.loads(store.get(key_of(_FRAGMENTS, partition)))
    return fragments


# --- partition

#: Writes the files of a partition of such fragments into a folder, by the names in their keys.
Write = Callable[[Fragments, Quarantine, Path], WrittenPartition]


def write_partitions(
    replica: Replica, plan: Plan, url: str, first: int, count: int, write: Write
) -> dict[str, int]:
    """Write ``count`` partitions of the output at ``url`` from number ``first`` on.

    Those that are written are skipped, and those that are known are copied.

    Returns:
        ``{"first": …, "count": …, "records": how many the partitions have}``.

    Raises:
        FinalError: there is no such partition, or more than ``max_rejected`` records of one are
            rejected.
    """
    store, root = open_store(url), open_store(replica.job.store)
    numbers, planned = range(first, first + count), len(plan.partitions)
    if not 0 <= numbers.start < numbers.stop <= planned:
        raise FinalError(
            f"there are no partitions {numbers.start} to {numbers.stop - 1}; the plan of {url} has "
            f"{planned}, numbered from 0"
        )
    found = _found(store, numbers)
    if done := sum(each is not None for each in found):
        print(f"{done} of {count} partitions are written already: skipped")
    records = 0
    for number, written in zip(numbers, found, strict=True):
        new = written or _copied_or_written(replica, root, store, plan, number, write)
        records += new.records
    return {"first": first, "count": count, "records": records}


def _copied_or_written(
    replica: Replica, root: Store, store: Store, plan: Plan, number: int, write: Write
) -> WrittenPartition:
    known = f"{PARTS}/{plan.partitions[number]}.json"
    copied = _copied(root, known, plan.folder, number)
    written = copied or _write(replica.scratch, store, plan, number, write)
    where = {"folder": plan.folder, "partition": number}
    root.put(known, (json.dumps(where) + "\n").encode())
    store.put(partition_key(number), written.to_json().encode())
    how = "copied from an earlier output" if copied else "written"
    records = counted(written.records, "record")
    print(f"partition {number} is {how}: {records}, {written.rejected:,} in quarantine", flush=True)
    return written


def _copied(root: Store, known: str, folder: str, number: int) -> WrittenPartition | None:
    """Copy the partition from an output that has it; None if no output has all of it."""
    try:
        place = json.loads(root.get(known))
        old, earlier = place["folder"], place["partition"]
        written = WrittenPartition.read(root, f"{old}/{partition_key(earlier)}")
        for file in written.files if written else ():
            root.copy(f"{old}/{key_of(file, earlier)}", f"{folder}/{key_of(file, number)}")
    except MissingError:
        return None  # the earlier output was deleted, or never completed
    return written


def _write(scratch: Path, store: Store, plan: Plan, number: int, write: Write) -> WrittenPartition:
    """Write one partition and upload it to the store."""
    rejected, key = scratch / "quarantine.jsonl", quarantine_key(number)
    with rejected.open("w") as lines:
        quarantine = Quarantine(most=plan.rules.max_rejected, url=f"{store.url}/{key}", file=lines)
        try:
            written = write(read_fragments(store, number), quarantine, scratch)
        finally:
            lines.flush()
            if quarantine.count:
                store.upload(rejected, key)
            rejected.unlink()
    for file in written.files:
        path = scratch / PurePath(file).name
        store.upload(path, key_of(file, number))
        path.unlink()
    return replace(
        written,
        files=[*written.files, _QUARANTINE] if quarantine.count else written.files,
        rejected=quarantine.count,
        first_rejected=quarantine.first,
    )


# --- finalize


def written_partitions(store: Store, plan: Plan) -> tuple[list[WrittenPartition], Rejections]:
    """What was written of each partition of the plan, and what was rejected of all together.

    Raises:
        FinalError: some are not written, or too many records were rejected.
    """
    count = len(plan.partitions)
    found = _found(store, range(count))
    written = [each for each in found if each is not None]
    if len(written) < count:
        missing = [str(number) for number, each in enumerate(found) if each is None]
        rest = ", …" if len(missing) > SHOWN else ""
        raise FinalError(
            f"{len(missing)} of {count} partitions of {store.url} are not written: "
            f"{', '.join(missing[:SHOWN])}{rest}; run {plan.STEP} again with the same source; "
            "the partitions that are written are kept"
        )
    having = [number for number, each in enumerate(written) if each.rejected]
    rejections = Rejections(
        most=plan.rules.max_rejected,
        url=f"{store.url}/{quarantine_key(having[0]) if len(having) == 1 else QUARANTINE}",
        count=sum(each.rejected for each in written),
        first=[each for partition in written for each in partition.first_rejected][:SHOWN],
    )
    rejections.check()
    return written, rejections


def _found(store: Store, numbers: range) -> list[WrittenPartition | None]:
    """What was written of these partitions; None of those that are not."""
    keys = [partition_key(number) for number in numbers]
    return list(each_of(lambda key: WrittenPartition.read(store, key), keys))
