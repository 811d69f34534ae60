"""Detection, by the first bytes, of files that are not of the kind that their source declares."""

from aerotrain.data.sources.files import InputFile
from aerotrain.data.sources.protocol import SourceError

#: Bytes of a file that are examined.
_LOOKED_AT = 2**16

_MARK = b"\xef\xbb\xbf"

_LET_NAME = "but its name does not say so; let it end in"

#: The magic numbers of other kinds of files, what they are, and what to do.
_BEGINNINGS = {
    b"\x1f\x8b": f"is compressed by gzip, {_LET_NAME} .gz",
    b"\x28\xb5\x2f\xfd": f"is compressed by zstd, {_LET_NAME} .zst",
    b"BZh": f"is compressed by bzip2, {_LET_NAME} .bz2",
    b"\xfd7zXZ\0": "is compressed by xz, which is not supported; compress it with zstd or gzip",
    b"PK\3\4": "is a zip archive; unpack it",
    b"PAR1": "is a Parquet file; read it as kind 'parquet'",
    b"\xff\xfe": "is in UTF-16; write it in UTF-8",
    b"\xfe\xff": "is in UTF-16; write it in UTF-8",
}

#: Common delimiters other than the comma.
_DELIMITERS = "\t;|"


def check_beginning(file: InputFile, kind: str, delimiter: str | None = None) -> None:
    """Check by its first bytes that a file is of its source's kind.

    ``delimiter`` is that of a CSV file, None if the source does not set it.

    Raises:
        SourceError: it is of another kind; the message says which, and what to do.
    """
    with file.stream() as stream:
        begin = bytes(stream.read(_LOOKED_AT))
    what = next((_BEGINNINGS[each] for each in _BEGINNINGS if begin.startswith(each)), None)
    lines = begin.removeprefix(_MARK).strip().splitlines() or [b""]
    if kind == "jsonl":
        what = what or _why_no_json_lines(lines[0].strip())
    elif kind == "csv":
        what = what or _why_no_csv(begin, lines, delimiter)
    if what:
        raise SourceError(f"{file.url} {what}")


def _why_no_json_lines(first: bytes) -> str | None:
    if first.startswith(b"["):
        return "is a JSON array; write each record as a line of its own, without commas between"
    if first.startswith(b"{") and first.endswith((b"{", b"[", b",")):
        return "is JSON with records of several lines; write each record as one line"
    return None


def _why_no_csv(begin: bytes, lines: list[bytes], delimiter: str | None) -> str | None:
    if b"\r" in begin.strip() and b"\n" not in begin:
        return "ends its lines with CR alone; end them with LF, or CR and LF"
    separates = (delimiter or ",").encode()
    if lines[0].startswith(b"#") and separates not in lines[0] and separates in b"".join(lines[1:]):
        return "begins with a comment; remove its first line"
    if delimiter is None and separates not in lines[0]:
        counts = {each: lines[0].count(each.encode()) for each in _DELIMITERS}
        most = max(counts, key=lambda each: counts[each])
        if counts[most]:
            return (
                f"has no ',' in its first line, but {counts[most]} {most!r}; set 'delimiter' to "
                "what separates its values"
            )
    return None
