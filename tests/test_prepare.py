"""Preparing data: the same input gives the same bytes, and a data set is complete or absent."""

import gzip
import os
import resource
import subprocess
import sys
import textwrap
from collections.abc import Callable, Iterator
from functools import partial
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from aerotrain.contract.environment import replica_environment
from aerotrain.contract.errors import ExitCode, FinalError, SpecError, TemporaryError
from aerotrain.contract.job import Job
from aerotrain.contract.replicas import ReplicaName, Role
from aerotrain.data.dataset import Feature, load_dataset
from aerotrain.standalone import prepare, run_step
from aerotrain.store import MANIFEST, MissingError, StoredFile, fetch_file, open_store

#: A user's module with PARTS partitions of 100 records each.
SOURCE = """
    import numpy as np

    PARTS = 2

    def list_parts():
        return [{"number": number} for number in range(PARTS)]

    def read_part(part):
        for row in range(100):
            number = 100 * part["number"] + row
            yield f"row-{number}", {"x": np.full(3, number, np.float32), "label": number % 5}
"""

Write = Callable[..., str]


@pytest.fixture
def write_source(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Write]:
    """Writes a user's module, with some of its text replaced, to an importable place."""
    monkeypatch.syspath_prepend(str(tmp_path / "code"))
    names: list[str] = []

    def write(replaced: str = "", by: str = "", text: str = SOURCE) -> str:
        assert replaced in text
        names.append(f"source_{len(names)}")
        path = tmp_path / "code" / f"{names[-1]}.py"
        path.parent.mkdir(exist_ok=True)
        path.write_text(textwrap.dedent(text.replace(replaced, by) if replaced else text))
        return names[-1]

    yield write
    for name in names:
        sys.modules.pop(name, None)


@pytest.mark.parametrize("shards", [5, 9000])
def test_a_finished_data_set_holds_every_record_once(
    store_url: str, tmp_path: Path, write_source: Write, shards: int
) -> None:
    url = prepare(store_url, tmp_path, write_source(), shards=shards)
    dataset = load_dataset(url)
    assert url == f"{store_url}/datasets/{dataset.fingerprint}"
    assert dataset.schema == {"x": Feature("float32", (3,)), "label": Feature("int64")}
    assert sum(split.records for split in dataset.splits.values()) == 200
    for split in dataset.splits.values():
        assert len(split.shards) in ((5, 6) if shards == 5 else (split.records,))
        assert sum(split.classes.values()) == split.records
        for shard in split.shards:
            assert shard.records > 0
            expected = StoredFile(shard.bytes, shard.sha256)
            fetch_file(open_store(url), shard.file, expected, tmp_path / shard.file)
            assert len(_frames(tmp_path / shard.file)) == shard.records
    classes = [dataset.splits[name].classes for name in dataset.splits]
    assert [sum(each.get(label, 0) for each in classes) for label in range(5)] == [40] * 5


def test_preparing_the_same_input_again_writes_nothing_and_reports_that(
    store_url: str, tmp_path: Path, write_source: Write, capsys: pytest.CaptureFixture[str]
) -> None:
    module = write_source()
    url = prepare(store_url, tmp_path, module)
    store = open_store(store_url)
    before = {each.key: store.get(each.key) for each in store.list()}
    capsys.readouterr()
    planned = run_step(
        "data.prepare.plan", store_url, tmp_path, source={"kind": "python", "module": module}
    )
    assert planned == {"output": url, "partitions": []}
    again = run_step("data.prepare.partition", store_url, tmp_path, output=url, first=0, count=2)
    assert again["records"] == 200
    assert run_step("data.prepare.finalize", store_url, tmp_path, output=url) == url
    planned_said, partition_said, finalize_said = capsys.readouterr().out.splitlines()
    assert "nothing to write" in planned_said
    assert "skipped" in partition_said
    assert "already finalized" in finalize_said
    assert {each.key: store.get(each.key) for each in store.list()} == before


@pytest.mark.parametrize(
    ("replaced", "by", "arguments"),
    [
        ('{"number": number}', '{"number": number, "etag": 2}', {}),
        ("np.full(3, number", "np.full(3, -number", {}),
        ("", "", {"shards": 5}),
        ("", "", {"splits": {"train": 0.8, "test": 0.2}}),
    ],
)
def test_another_input_makes_another_data_set(
    tmp_path: Path, write_source: Write, replaced: str, by: str, arguments: dict[str, Any]
) -> None:
    first = prepare(tmp_path.as_uri(), tmp_path, write_source())
    changed = write_source(replaced, by)
    second = prepare(tmp_path.as_uri(), tmp_path, changed, allow_drift=True, **arguments)
    assert first != second


def test_a_record_keeps_its_split_for_any_order_and_number_of_shards(
    tmp_path: Path, write_source: Write
) -> None:
    def by_split(url: str) -> dict[str, set[bytes]]:
        folder = tmp_path / "store" / "datasets" / url.rpartition("/")[2]
        return {
            name: {frame for shard in split.shards for frame in _frames(folder / shard.file)}
            for name, split in load_dataset(url).splits.items()
        }

    store = (tmp_path / "store").as_uri()
    one = prepare(store, tmp_path, write_source())
    backwards = write_source("in range(100)", "in reversed(range(100))")
    other = prepare(store, tmp_path, backwards, shards=12)
    assert one != other
    assert by_split(one) == by_split(other)


# --- killed

#: Prepares once for each number of writes, and is killed after that many. Each time runs in a
#: process of its own, forked when all is imported and nothing has run.
_PREPARE_AND_DIE = """
    import os, sys
    from pathlib import Path
    from aerotrain.standalone import prepare

    def prepare_and_die(store, module, left):
        def die_before_a_write(event, arguments):
            nonlocal left
            if event == "os.rename" and store.removeprefix("file://") in str(arguments[1]):
                if (left := left - 1) < 0:
                    os.kill(os.getpid(), 9)

        sys.addaudithook(die_before_a_write)
        prepare(store, Path(scratch) / "killed", module, splits={"train": 1.0})

    folder, scratch, module, objects = sys.argv[1:]
    for writes in range(int(objects)):
        child = os.fork()
        if not child:
            prepare_and_die(f"{folder}/{writes}", module, writes)
            os._exit(0)
        assert os.waitpid(child, 0)[1] == 9, writes
"""


@pytest.mark.process
def test_a_run_after_a_kill_at_any_moment_completes_the_same_manifest(
    tmp_path: Path, write_source: Write
) -> None:
    module = write_source()
    store = (tmp_path / "whole").as_uri()
    whole = open_store(prepare(store, tmp_path, module, splits={"train": 1.0}))
    objects = [each.key for each in open_store(store).list()]
    killed = (tmp_path / "killed").as_uri()
    python = [sys.executable, "-c", textwrap.dedent(_PREPARE_AND_DIE)]
    subprocess.run(
        [*python, killed, str(tmp_path), module, str(len(objects))],
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
        check=True,
    )
    for writes in range(len(objects)):
        written = [each.key for each in open_store(f"{killed}/{writes}").list()]
        assert len(written) == writes
        # Only the pointer to the latest data set is written after the manifest.
        assert any(key.endswith(MANIFEST) for key in written) == (writes == len(objects) - 1)
        completed = f"{killed}/{writes}"
        url = prepare(completed, tmp_path, module, splits={"train": 1.0})
        assert open_store(url).get(MANIFEST) == whole.get(MANIFEST)
        assert [each.key for each in open_store(completed).list()] == objects


@pytest.mark.process
def test_a_full_scratch_disk_fails_temporarily_and_the_next_try_completes(
    tmp_path: Path, write_source: Write
) -> None:
    module = write_source("np.full(3,", "np.full(20_000,")  # 8 MB in each partition
    whole = open_store(prepare((tmp_path / "whole").as_uri(), tmp_path, module))
    store = (tmp_path / "store").as_uri()
    source = {"kind": "python", "module": module}
    planned = run_step("data.prepare.plan", store, tmp_path, source=source)
    job = Job(
        name="partition",
        module="aerotrain.data.prepare.partition",
        store=store,
        run="run",
        task="partition",
        arguments=planned["partitions"][0],
    )
    (tmp_path / "small").mkdir()
    ended = subprocess.run(
        [sys.executable, "-m", "aerotrain.replica"],
        cwd=tmp_path / "small",
        env={
            **os.environ,
            **replica_environment(job, ReplicaName(Role.CHIEF, 0), {}, attempt="1"),
            "PYTHONPATH": os.pathsep.join(filter(None, sys.path)),
        },
        preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 17, 1 << 17)),
        stdout=subprocess.PIPE,
        text=True,
        check=False,
    )
    assert ended.returncode == ExitCode.TEMPORARY
    assert "is full; free some of it" in ended.stdout.splitlines()[-1]
    assert open_store(prepare(store, tmp_path, module)).get(MANIFEST) == whole.get(MANIFEST)


def test_any_number_of_fragments_is_mapped_to_a_bounded_number_of_tasks(
    tmp_path: Path, write_source: Write
) -> None:
    source = {"kind": "python", "module": write_source("PARTS = 2", "PARTS = 1100")}
    step = partial(run_step, "data.prepare.plan", tmp_path.as_uri(), tmp_path, source=source)
    for most, tasks in ({}, 128), ({"partition_tasks": 3}, 3), ({"partition_tasks": 5000}, 1100):
        planned = step(**most)["partitions"]  # Airflow maps at most 1,024 (max_map_length)
        assert len(planned) == tasks
        ranges = [range(each["first"], each["first"] + each["count"]) for each in planned]
        assert list(chain(*ranges)) == list(range(1100))
        assert {len(each) for each in ranges} <= {1100 // tasks, 1100 // tasks + 1}


def test_the_retry_of_a_task_reads_only_the_fragments_that_are_missing(
    tmp_path: Path, write_source: Write
) -> None:
    module = write_source(
        "for row in",
        f"""log = open({str(tmp_path / "log")!r}, "a+")
        log.seek(0)
        lost = part["number"] == 3 and "3" not in log.read()
        print(part["number"], file=log, flush=True)
        if lost:
            raise ConnectionError("lost")
        for row in""",
        SOURCE.replace("PARTS = 2", "PARTS = 6"),
    )
    store, read = (tmp_path / "store").as_uri(), tmp_path / "log"
    with pytest.raises(TemporaryError, match="ConnectionError: lost"):
        prepare(store, tmp_path, module, partition_tasks=1)
    assert read.read_text().split() == ["0", "1", "2", "3"]
    prepare(store, tmp_path, module, partition_tasks=1)
    assert read.read_text().split() == ["0", "1", "2", "3", "3", "4", "5"]


def test_a_missing_partition_is_named(tmp_path: Path, write_source: Write) -> None:
    source = {"kind": "python", "module": write_source("PARTS = 2", "PARTS = 4")}
    planned = run_step("data.prepare.plan", tmp_path.as_uri(), tmp_path, source=source)
    for number in (0, 2):
        run_step(
            "data.prepare.partition", tmp_path.as_uri(), tmp_path, **planned["partitions"][number]
        )
    with pytest.raises(FinalError, match=r"2 of 4 partitions .* 1, 3; run prepare again"):
        run_step("data.prepare.finalize", tmp_path.as_uri(), tmp_path, output=planned["output"])
    with pytest.raises(MissingError, match="there is no finished data set"):
        load_dataset(planned["output"])


# --- memory

#: Prepares a source, and prints the most memory that it took, in MiB.
_PREPARE_AND_MEASURE = """
    import re, sys
    from pathlib import Path
    from aerotrain.standalone import prepare

    store, scratch, kind, url = sys.argv[1:]
    prepare(store, Path(scratch), {"kind": kind, "url": url})
    print(int(re.search(r"VmHWM:\\s+(\\d+)", Path("/proc/self/status").read_text())[1]) // 1024)
"""


@pytest.mark.process
@pytest.mark.parametrize(
    ("kind", "repeats"), [("parquet", True), ("parquet", False), ("jsonl", True)]
)
def test_memory_is_bounded_where_files_hold_large_data(
    kind: str, repeats: bool, tmp_path: Path
) -> None:
    """Some 200 MB of values: in files of 1 MB, texts that repeat, and lines that lack values.

    And texts that differ, in one row group.
    """
    path = tmp_path / "source" / f"x.{kind}{'' if kind == 'parquet' else '.gz'}"
    path.parent.mkdir()
    if kind == "parquet":
        text = pa.DictionaryArray.from_arrays(np.zeros(30_000, np.int32), ["x" * 10_000])
        if not repeats:
            text = pa.array([f"{row:010000}" for row in range(30_000)])
        pq.write_table(pa.table({"id": np.arange(30_000), "text": text}), path)
    else:
        with gzip.open(path, "wt", compresslevel=1) as file:
            names = ",".join(f'"feature-{number}":0.5' for number in range(100))
            rows = (f'{{"id":{row}}}\n' for row in range(60_000))
            file.write(f'{{"id":-1,{names}}}\n' + "".join(rows))
    ended = subprocess.run(
        [
            *(sys.executable, "-c", textwrap.dedent(_PREPARE_AND_MEASURE)),
            *((tmp_path / "store").as_uri(), str(tmp_path / "scratch"), kind),
            path.parent.as_uri(),
        ],
        env={**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
        stdout=subprocess.PIPE,
        text=True,
        check=True,
    )
    assert int(ended.stdout.splitlines()[-1]) < 512


# --- bad input


@pytest.mark.parametrize(
    ("replaced", "by", "words"),
    [
        (
            "np.full(3, number,",
            "np.full(3 + (row == 7), number,",
            r"part 0 at position 7: record 'row-7': .*'x' is float32 of shape \(4,\)",
        ),
        (
            '"label": number % 5',
            '**({} if row == 7 else {"label": 1})',
            "position 7: record 'row-7': .*features are x, where the first record has label, x",
        ),
        ("number % 5", "number // (7 - row)", "after record 'row-6', .* ZeroDivisionError"),
        ('f"row-{number}"', "number", "position 0 of part 0.*a key, which is a string"),
        ("number % 5", "None", "100 records .*at position 0: record 'row-0': .* is NoneType"),
    ],
)
def test_a_bad_record_is_named(
    tmp_path: Path, write_source: Write, replaced: str, by: str, words: str
) -> None:
    store = (tmp_path / "store").as_uri()
    with pytest.raises(FinalError, match=f"(?s){words}"):
        prepare(store, tmp_path, write_source(replaced, by))
    keys = {each.key.split("/", 2)[2] for each in open_store(store).list()}
    assert keys - {"quarantine/00000.jsonl"} == {"plan.json", "plan/00000.json", "plan/00001.json"}


def test_reading_stops_when_too_many_records_are_rejected(
    tmp_path: Path, write_source: Write
) -> None:
    module = write_source(
        "for row in range(100):",
        "for row in (READ.append(row) or row for row in range(10_000)):",
        SOURCE.replace("np.full(3,", "np.full(3 + (row > 0),").replace(
            "PARTS", "READ = []\n    PARTS", 1
        ),
    )
    with pytest.raises(FinalError, match=r"at least [\d,]+ records were rejected"):
        prepare(tmp_path.as_uri(), tmp_path, module)
    assert len(sys.modules[module].READ) < 2000


@pytest.mark.parametrize(
    ("replaced", "by", "words"),
    [
        ("PARTS = 2", "PARTS = 0", "is empty: it lists no fragment"),
        ("range(100)", "range(0)", "the data set is empty: none of its partitions has a record"),
        ("range(100)", "range(3)", "split '.*' got no record with its share of 0.*larger"),
        ("np.full(3,", 'np.full(3 + part["number"],', "partition 1 have .*of partition 0"),
        (
            '100 * part["number"] + row',
            "5",
            "199 records repeat a key, the first at part 0, position 0 'row-5' and part 0",
        ),
    ],
)
def test_an_unusable_data_set_is_not_finalized(
    tmp_path: Path,
    write_source: Write,
    replaced: str,
    by: str,
    words: str,
) -> None:
    store = (tmp_path / "store").as_uri()
    with pytest.raises(FinalError, match=words):
        prepare(store, tmp_path, write_source(replaced, by))
    assert not any(each.key.endswith(MANIFEST) for each in open_store(store).list())


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ({"source": {"kind": "pyhton"}}, "did you mean 'python'"),
        ({"source": {"kind": "python"}}, "needs 'module'"),
        ({"source": {"kind": "python", "module": "nowhere"}}, "there is no module 'nowhere'"),
        ({"source": {"kind": "python", "module": "json"}}, "no function list_parts"),
        ({"splits": {"../x": 1.0}}, "cannot be part of a file's name"),
        ({"shards": 0}, "shards must be a whole number from 1 to 10000, got 0"),
    ],
)
def test_invalid_arguments_of_plan_are_refused(
    tmp_path: Path, arguments: dict[str, Any], words: str
) -> None:
    arguments = {"source": {"kind": "python", "module": "json"}} | arguments
    with pytest.raises((FinalError, SpecError), match=words):
        run_step("data.prepare.plan", tmp_path.as_uri(), tmp_path, **arguments)


def _frames(path: Path) -> list[bytes]:
    """The records of a TFRecord file: 8 bytes of length, 4 of checksum, data, 4 of checksum."""
    data, frames, start = path.read_bytes(), [], 0
    while start < len(data):
        end = start + 12 + int.from_bytes(data[start : start + 8], "little")
        frames.append(data[start + 12 : end])
        start = end + 4
    return frames
