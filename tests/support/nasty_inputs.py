"""Nasty inputs, and what ``prepare`` makes of each: ``make docs`` writes docs/inputs.md by this."""

import contextlib
import gzip
import io
import json
import os
import re
import tempfile
import zlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from datetime import date
from pathlib import Path
from typing import Any

import google_crc32c
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from aerotrain.contract.errors import FinalError
from aerotrain.data.dataset import load_dataset
from aerotrain.data.partitions import quarantine_key
from aerotrain.data.records.columns import column_of
from aerotrain.data.records.encoding import encode
from aerotrain.data.records.framing import framed
from aerotrain.data.sources.batch import Rejected
from aerotrain.standalone import prepare
from aerotrain.store import open_store


def _chunk(kind: bytes, data: bytes = b"") -> bytes:
    return len(data).to_bytes(4) + kind + data + zlib.crc32(kind + data).to_bytes(4)


#: A white pixel, and the segments of a JPEG with some pixels.
PNG = b"\x89PNG\r\n\x1a\n" + b"".join(
    [
        _chunk(b"IHDR", bytes([0, 0, 0, 1, 0, 0, 0, 1, 8, 0, 0, 0, 0])),
        _chunk(b"IDAT", zlib.compress(b"\0\xff")),
        _chunk(b"IEND"),
    ]
)
JPEG = (
    b"\xff\xd8\xff\xc0\0\x0b\x08\0\x01\0\x01\x01\x01\x11\0"
    b"\xff\xda\0\x08\x01\x01\0\0\x3f\0pixels\xff\0pixels\xff\xd0pixels\xff\xd9"
)


@dataclass(frozen=True)
class Case:
    """One input: its kind, the content of its files by name, and further options.

    ``source`` are options of the source, ``rules`` those of ``prepare``.
    """

    title: str
    kind: str
    files: bytes | Mapping[str | bytes, bytes]
    source: Mapping[str, Any] = field(default_factory=dict)
    rules: Mapping[str, Any] = field(default_factory=dict)


def outcome(case: Case, folder: Path) -> str:
    """What ``prepare`` makes of the input, in one line; other errors than ours are raised."""
    where = folder / "in"
    files = {f"x.{case.kind}": case.files} if isinstance(case.files, bytes) else case.files
    for name, content in files.items():
        path = where / os.fsdecode(name)
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)
    where.mkdir(exist_ok=True)
    if case.kind == "npy":
        source = {"features": {Path(each).stem: f"{where.as_uri()}/{each}" for each in files}}
    else:
        source = {"url": where.as_uri()}
    rules = {"splits": {"all": 1.0}, "max_rejected": 10**6, "shards": 1, **case.rules}
    try:
        with contextlib.redirect_stdout(io.StringIO()):
            url = prepare(
                (folder / "store").as_uri(),
                folder,
                {"kind": case.kind, **source, **case.source},
                **rules,
            )
    except FinalError as error:
        return "refused: " + _line(str(error), where)
    return "read: " + _line(_described(url), where)


def _described(url: str) -> str:
    data, store = load_dataset(url), open_store(url)
    count = data.splits["all"].records
    columns = [
        f"{name} {each.dtype}{' × ' if each.shape else ''}{' × '.join(map(str, each.shape))}"
        for name, each in data.schema.items()
    ]
    shown = columns if len(columns) < 9 else [*columns[:2], f"{len(columns) - 2} more"]
    text = f"{count} record{'s' * (count != 1)} of {', '.join(shown)}"
    if store.exists(quarantine_key(0)):
        rejected = [json.loads(each) for each in store.get(quarantine_key(0)).splitlines()]
        places = ", ".join(Rejected(**each).place for each in rejected)
        text += f"; rejected at {places}: {rejected[0]['reason']}"
    return text


def _line(text: str, where: Path) -> str:
    """The text in one line of a table, without this run's folder."""
    text = text.replace(f"{where.as_uri()}/", "").replace(where.as_uri(), "the folder")
    text = " ".join(text.split())
    text = re.sub(r"([^\s'\"]{60})[^\s'\"]{20,}", r"\1…", text)
    text = text if len(text) <= 300 else f"{text[:300]}…"
    return text.replace("|", "\\|").replace("<", "&lt;")


def rows() -> Iterator[tuple[str, str, str]]:
    """The title, the kind and the outcome of each case."""
    for case in CASES:
        with tempfile.TemporaryDirectory() as folder:
            yield case.title, case.kind, outcome(case, Path(folder))


def page() -> str:
    """The text of docs/inputs.md."""
    lines = [
        "# Unusual inputs",
        "",
        "What `prepare` makes of inputs that are damaged, unusual or of another kind. Records that",
        "are *rejected* go to quarantine, and more than `max_rejected` of them fail the run. A",
        "source that is *refused* fails the run with this message. `make docs` writes this page",
        "from the cases in `tests/support/nasty_inputs.py`, and a test runs all of them.",
        "",
        "| input | kind | outcome |",
        "|---|---|---|",
        *(f"| {title} | `{kind}` | {result} |" for title, kind, result in rows()),
    ]
    return "\n".join(lines) + "\n"


# --- how the files are made


def _parquet(**columns: Any) -> bytes:
    file = io.BytesIO()
    pq.write_table(pa.table(columns), file)
    return file.getvalue()


def _parquet_of_pandas() -> bytes:
    """What pandas writes of a filtered table, without pandas."""
    table = pa.table({"n": [1], "__index_level_0__": [7]})
    about = {"index_columns": ["__index_level_0__"], "columns": [], "pandas_version": "3.0.0"}
    file = io.BytesIO()
    pq.write_table(table.replace_schema_metadata({"pandas": json.dumps(about)}), file)
    return file.getvalue()


def _parquet_of_a_damaged_page() -> bytes:
    file = io.BytesIO()
    numbers = pa.table({"n": np.arange(99)})
    pq.write_table(
        numbers, file, compression="none", use_dictionary=False, write_page_checksum=True
    )
    return flipped(file.getvalue(), file.getvalue().index(np.int64(50).tobytes()))


def _parquet_of_equal_names() -> bytes:
    file = io.BytesIO()
    pq.write_table(pa.table([[1], [2]], names=["n", "n"]), file)
    return file.getvalue()


def _npy(values: Any = None, *, shape: tuple[int, ...] = (), order: bool = False) -> bytes:
    """An array file; with ``shape``, one whose header says so and that has 400 bytes of values."""
    file = io.BytesIO()
    if not shape:
        np.save(file, values, allow_pickle=True)
        return file.getvalue()
    header = {"descr": "<f4", "fortran_order": order, "shape": shape}
    np.lib.format.write_array_header_1_0(file, header)
    return file.getvalue() + bytes(400)


def _records(count: int = 3) -> bytes:
    return bytes(framed(encode({"n": column_of("n", np.arange(count))})).content)


def frame(record: bytes) -> bytes:
    """A file of one TFRecord."""
    return bytes(framed(pa.array([record], pa.large_binary())).content)


def head(length: int) -> bytes:
    """The header of a record of that length, with its valid checksum."""
    encoded = length.to_bytes(8, "little")
    crc = google_crc32c.value(encoded)
    masked = ((crc >> 15 | crc << 17) + 0xA282EAD8) & 0xFFFFFFFF
    return encoded + masked.to_bytes(4, "little")


def flipped(content: bytes, place: int) -> bytes:
    """The content with a wrong bit in the byte at that place."""
    return content[:place] + bytes([content[place] ^ 1]) + content[place + 1 :]


def _deep(depth: int) -> bytes:
    return b'{"n": 1}\n{"n": ' + b"[" * depth + b"]" * depth + b"}\n"


_NUMBERS = {"types": {"n": "int64"}}
_LISTS = b'{"n": [1, 2]}\n{"n": [3]}\n{}\n'
_GAPS = b"n,m,d\n1,,2026-01-01\n,2,\n3,4,2026-01-02\n"
_EMPTY_FILES = {f"{number:02d}.csv": (b"", b"n\n")[number % 2] for number in range(13)}
_LONG_HEADER = (
    b"n" + b"".join(b"," + b"%d" % each * 90_000 for each in range(9)) + b"\n1" + b",2" * 9
)
_LINES = b"".join(b"%d,a\n" % number for number in range(9))

# --- the cases

CASES = [
    # text
    Case("an empty file", "csv", b""),
    Case("a header and no record", "csv", b"n,t\n"),
    Case("blank lines among records", "csv", b"n,t\n\n1,a\n\r\n2,b\n\n"),
    Case("no line end at the end", "csv", b"n,t\n1,a"),
    Case("CR and LF at line ends", "csv", b"n,t\r\n1,a\r\n"),
    Case("CR alone at line ends", "csv", b"n,t\r1,a\r2,b\r"),
    Case("a name that begins with a mark", "csv", b"#,n\n1,1\n"),
    Case("tabs between values", "csv", b"n\tt\n1\ta\n"),
    Case("semicolons and decimal commas", "csv", b"n;t\n1,5;a\n"),
    Case("decimal commas, with `delimiter`", "csv", b"n;t\n1,5;a\n2,25;b\n", {"delimiter": ";"}),
    Case("blanks between values", "csv", b"59 2 32.1\n48 1 21.6\n"),
    Case("blanks in the values of one column", "csv", b"a text\ntwo words\none word\n"),
    Case("blanks after commas", "csv", b"n, t\n1, a\n"),
    Case("a header of numbers, after blanks", "csv", b"5.1, .5, 1e3\n4.9, .2, 2e3\n"),
    Case("thousands or decimals", "csv", b'n\n"1,100"\n"1,101"\n'),
    Case("decimal commas", "csv", b'n\n"1,5"\n"1,25"\n'),
    Case("integers with gaps", "csv", b"n,m\n1,\n,2\n16777217,4\n"),
    Case("integers with gaps that no float holds", "csv", b'n\n9007199254740993\n""\n'),
    Case("integers with gaps, declared", "csv", _GAPS, {"types": {"n": "int64", "m": "int64"}}),
    Case("a label that is NaN", "csv", b"label\n1.5\nnan\n2.5\n", {"types": {"label": "float64"}}),
    Case("a byte order mark", "csv", b"\xef\xbb\xbfn,t\n1,a\n"),
    Case("UTF-16", "csv", "n,t\n1,a\n".encode("utf-16")),
    Case("a value in Latin-1", "csv", b"n,t\n1,a\n2,\xe9\n3,c\n"),
    Case("Latin-1, with `encoding`", "csv", b"n,gr\xf6\xdfe\n1,2\n", {"encoding": "latin-1"}),
    Case("a header of 1.5 MB", "csv", _LONG_HEADER, {"columns": ["n"]}),
    Case(
        "2,000 columns", "csv", b",".join(b"c%d" % n for n in range(2000)) + b"\n1" + b",1" * 1999
    ),
    Case("two columns of one name", "csv", b"n,t,n\n1,a,2\n"),
    Case("a column without a name", "csv", b"n,,t\n1,2,a\n"),
    Case("a line with too few values", "csv", b"n,t\n1,a\n2\n3,c\n"),
    Case("no line with enough values", "csv", b"n,t\n1\n2\n"),
    Case("a line with too many values", "csv", b"n,t\n1,a\n2,b,c\n3,c\n"),
    Case("a word in a column of numbers", "csv", b"n,t\n1,a\nx,b\n3,c\n", _NUMBERS),
    Case("a line break in quotes", "csv", b'n,t\n1,"a\n5,b"\n2,c\n'),
    Case("a quote within a value", "csv", b'n,t\n1,3" pipe\n2,b\n'),
    Case("`NA` in texts and in numbers", "csv", b"n,t\n1,NA\nNA,DE\n"),
    Case("a column of nothing", "csv", b"n,t\n1,\n2,\n"),
    Case("a zero byte in a value", "csv", b"n,t\n1,a\0b\n2,c\n"),
    Case("an integer beyond 64 bits", "csv", b"n,t\n1,a\n99999999999999999999,b\n"),
    Case("infinity and NaN", "csv", b"n,t\ninf,a\n-inf,b\nnan,c\n1.5,d\n"),
    Case("gzip, `.GZ`", "csv", {"X.CSV.GZ": gzip.compress(b"n,t\n1,a\n")}),
    Case("gzip that is cut off", "csv", {"x.csv.gz": gzip.compress(b"n,t\n" + _LINES)[:-12]}),
    Case("gzip, named `.csv`", "csv", gzip.compress(b"n,t\n1,a\n")),
    Case("a Parquet file", "csv", _parquet(n=[1])),
    Case("a header that begins as a Parquet file does", "csv", b"PAR1,PAR2\n1,2\n"),
    Case("random bytes", "csv", np.random.default_rng(0).bytes(400)),
    Case("a name that is not UTF-8", "csv", {b"x\xe9.csv": b"n\n1\n"}),
    Case("no file", "csv", {}),
    Case("files that begin with `_` or `.`", "csv", {"_a.csv": b"n\n1\n", ".b.csv": b"n\n1\n"}),
    Case("empty files among others", "csv", {**_EMPTY_FILES, "06.csv": b"n\n1\n"}),
    Case(
        "a later file with a name twice",
        "csv",
        {"1.csv": b"n,t\n1,a\n", "2.csv": b"n,t,n\n1,a,2\n"},
    ),
    Case("a later file without a column", "csv", {"1.csv": b"n,t\n1,a\n", "2.csv": b"n\n2\n"}),
    Case("a list as `key`", "csv", b"n,t\n1,a\n", rules={"key": [["n", "t"]]}),
    Case("a key that occurs twice", "csv", b"n,t\n1,a\n1,b\n", rules={"key": ["n"]}),
    # JSON
    Case("a JSON array", "jsonl", b'[{"n": 1},\n {"n": 2}]\n'),
    Case("records of several lines", "jsonl", b'{\n  "n": 1\n}\n{\n  "n": 2\n}\n'),
    Case("a word in lines", "jsonl", b"n\n1\n"),
    Case("brackets in a text", "jsonl", b'{"n": "\\"' + b"[" * 200 + b'"}\n'),
    Case("100,000 nested lists", "jsonl", _deep(100_000)),
    Case("two records on a line", "jsonl", b'{"n": 1}\n{"n": 2} {"n": 3}\n'),
    Case("one name twice in a record", "jsonl", b'{"n": 1}\n{"n": 2, "n": 3}\n'),
    Case("`NaN` as a number", "jsonl", b'{"n": 1.5}\n{"n": NaN}\n'),
    Case("half of a surrogate pair", "jsonl", b'{"t": "a"}\n{"t": "\\ud800"}\n'),
    Case("an integer beyond 64 bits", "jsonl", b'{"n": 1}\n{"n": 99999999999999999999}\n'),
    Case("numbers and texts in one field", "jsonl", b'{"n": 1}\n{"n": "a"}\n{"n": 2}\n'),
    Case("lists of different lengths", "jsonl", _LISTS),
    Case("lists of different lengths, with `pad`", "jsonl", _LISTS, {"pad": {"n": 2}}),
    Case("a list longer than `pad`", "jsonl", _LISTS, {"pad": {"n": 1}}),
    Case("a null in a list of numbers", "jsonl", b'{"n": [16777217, null]}\n{"n": [2, 3]}\n'),
    Case("a null in a list of texts", "jsonl", b'{"n": ["a", null]}\n{"n": ["b", "c"]}\n'),
    Case(
        "a null in a padded list", "jsonl", b'{"n": ["a", null]}\n{"n": ["b"]}\n', {"pad": {"n": 2}}
    ),
    Case("objects in objects", "jsonl", b'{"n": {"a": 1}}\n'),
    Case("lists of objects", "jsonl", b'{"n": [{"a": 1}]}\n'),
    Case(
        "objects and numbers in one field", "jsonl", b'{"n": {"a": 1}}\n{"n": 2}\n{"n": {"a": 3}}\n'
    ),
    # Parquet
    Case("an empty file", "parquet", b""),
    Case("a file that is cut off", "parquet", _parquet(n=list(range(99)))[:-20]),
    Case("no rows", "parquet", _parquet(n=pa.array([], pa.int64()))),
    Case("two columns of one name", "parquet", _parquet_of_equal_names()),
    Case("a column of nothing", "parquet", _parquet(n=[1, 2], t=pa.array([None, None]))),
    Case("a missing integer", "parquet", _parquet(n=[1, None, 3])),
    Case(
        "a missing day, a missing truth",
        "parquet",
        _parquet(d=[date(2026, 1, 1), None], b=[None, True]),
    ),
    Case(
        "a column of nothing in one of two files",
        "parquet",
        {
            "1.parquet": _parquet(t=pa.nulls(2), n=pa.nulls(2)),
            "2.parquet": _parquet(t=["a"], n=[1]),
        },
    ),
    Case("the index of pandas", "parquet", _parquet_of_pandas()),
    Case("a wrong checksum of a page", "parquet", _parquet_of_a_damaged_page()),
    Case("a null in a list of texts", "parquet", _parquet(t=[["a", None], ["b", "c"]])),
    Case("a null in a list of numbers", "parquet", _parquet(n=[[1, None], [2, 3]])),
    Case("a label that is NaN", "parquet", _parquet(label=[1.5, float("nan")])),
    Case(
        "unsigned integers beyond int64", "parquet", _parquet(n=pa.array([1, 2**63], pa.uint64()))
    ),
    Case("lists of different lengths", "parquet", _parquet(n=[[1, 2], [3]])),
    Case(
        "a column of maps",
        "parquet",
        _parquet(n=[1], m=pa.array([[("a", 1)]], pa.map_("string", "int64"))),
    ),
    # images
    Case("a cut-off image", "images", {"cat/1.jpg": JPEG[:-2], "cat/2.jpg": JPEG}),
    Case("a cut-off image", "images", {"cat/1.png": PNG[:-8], "cat/2.png": PNG}),
    Case("an image without its pixels", "images", {"cat/1.jpg": JPEG[:15], "cat/2.jpg": JPEG}),
    Case("a wrong bit in an image", "images", {"cat/1.png": flipped(PNG, 45), "cat/2.png": PNG}),
    Case("text called `.png`", "images", {"cat/1.png": b"no image", "cat/2.png": PNG}),
    Case("no image", "images", {"cat/1.txt": b""}),
    Case(
        "a class that is not declared",
        "images",
        {"bird/1.png": PNG, "cat/1.png": PNG},
        {"classes": ["cat"]},
    ),
    # arrays
    Case("a header of 10¹² rows", "npy", {"x.npy": _npy(shape=(10**12,))}),
    Case("gzip", "npy", {"x.gz": gzip.compress(_npy(np.zeros(3)))}),
    Case("text", "npy", {"x.npy": b"text"}),
    Case("Fortran order", "npy", {"x.npy": _npy(shape=(10, 10), order=True)}),
    Case("Python objects", "npy", {"x.npy": _npy(np.array([{}, None], object))}),
    Case("complex numbers", "npy", {"x.npy": _npy(np.zeros(3, np.complex64))}),
    Case("one value, no array", "npy", {"x.npy": _npy(np.float32(1))}),
    Case(
        "arrays of different lengths",
        "npy",
        {"a.npy": _npy(np.zeros(3)), "b.npy": _npy(np.zeros(4))},
    ),
    Case("unsigned integers", "npy", {"x.npy": _npy(np.array([1, 2], np.uint64))}),
    Case("a label that is NaN", "npy", {"label.npy": _npy(np.array([1.5, np.nan]))}),
    # TFRecord
    Case("an empty file", "tfrecord", b""),
    Case("a file of text", "tfrecord", b"id,n\n" * 9),
    Case("a record of 2⁶⁰ bytes", "tfrecord", _records() + head(2**60) + _records()),
    Case("a wrong bit in a record", "tfrecord", flipped(_records(), len(_records()) - 5)),
    Case("a wrong bit in a length", "tfrecord", flipped(_records(), 0)),
    Case("a file that is cut off", "tfrecord", _records()[:-1]),
    Case("gzip, named `.tfrecord`", "tfrecord", gzip.compress(b"x" * 90)),
    Case("a wrong bit in gzip", "tfrecord", {"x.gz": gzip.compress(flipped(_records(), 65))}),
    Case("a first record that is no Example", "tfrecord", frame(b"text") + _records()),
    Case("SequenceExamples", "tfrecord", frame(b"\x12\x04\n\x02\n\0") * 3),
    Case("Examples without a feature", "tfrecord", frame(b"") * 3),
    Case("Examples of other features", "tfrecord", _records() + frame(b"")),
]

if __name__ == "__main__":
    print(page(), end="")
