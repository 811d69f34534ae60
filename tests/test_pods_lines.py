"""Lines of any length in a stream: what is kept, the note on the rest, and the memory used."""

import tracemalloc

import pytest

from aerotrain_airflow.kubernetes.lines import Line, LineSplitter, moment, readable


def split(*pieces: bytes, longest: int = 8) -> tuple[list[Line], Line | None]:
    splitter = LineSplitter(longest)
    return [line for piece in pieces for line in splitter.feed(piece)], splitter.rest()


@pytest.mark.parametrize(
    ("pieces", "lines", "rest"),
    [
        ([b"one\ntwo\n"], [Line(b"one"), Line(b"two")], None),
        ([b"on", b"e", b"\n", b"\n"], [Line(b"one"), Line(b"")], None),
        ([b"one\ntw"], [Line(b"one")], Line(b"tw")),
        ([b"12345678\n"], [Line(b"12345678")], None),
        ([b"123456789\nnext\n"], [Line(b"12345678", 1), Line(b"next")], None),
        ([b"12345678", b"9" * 92, b"9\nnext\n"], [Line(b"12345678", 93), Line(b"next")], None),
        ([b"12345678", b"90"], [], Line(b"12345678", 2)),
    ],
)
def test_a_line_is_joined_from_any_pieces_and_cut_at_its_limit(
    pieces: list[bytes], lines: list[Line], rest: Line | None
) -> None:
    assert split(*pieces) == (lines, rest)


def test_an_endless_line_takes_bounded_memory() -> None:
    splitter, piece = LineSplitter(1 << 16), b"x" * (1 << 16)
    tracemalloc.start()
    try:
        for _ in range(4096):  # 256 MiB
            assert not list(splitter.feed(piece))
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < 1 << 20
    assert list(splitter.feed(b"\n")) == [Line(piece, 4095 << 16)]


@pytest.mark.parametrize(
    ("line", "text"),
    [
        (Line(b"short"), "short"),
        (Line(b"12345678"), "12345678"),
        (Line(b"123456789"), "12345678 [1 more bytes of this line were cut]"),
        (Line(b"123456789", 1000), "12345678 [1001 more bytes of this line were cut]"),
        (Line(b"1\xff345678", 10), "1\ufffd345678 [10 more bytes of this line were cut]"),
    ],
)
def test_a_cut_line_states_how_many_bytes_were_cut(line: Line, text: str) -> None:
    assert readable(line, 8) == text


@pytest.mark.parametrize(
    ("stamp", "at"),
    [
        ("2026-11-25T04:48:37.123456789Z", "2026-11-25T04:48:37.123456789Z"),
        ("2026-11-25T04:48:37.12Z", "2026-11-25T04:48:37.120000000Z"),
        ("2026-11-25T04:48:37Z", "2026-11-25T04:48:37.000000000Z"),
        # Nodes write their own time zone.
        ("2026-11-25T04:48:37.123456789+05:30", "2026-11-24T23:18:37.123456789Z"),
        ("2026-11-25T23:48:37.123456789-03:30", "2026-11-26T03:18:37.123456789Z"),
        # What a kubelet answers instead of lines, and what is no time at all.
        ("unable", ""),
        ("failed", ""),
        ("2026-11-25", ""),
        ("2026-11-25T04:48:37", ""),
        ("", ""),
    ],
)
def test_the_time_of_a_line_is_a_timestamp_in_utc_or_nothing(stamp: str, at: str) -> None:
    assert moment(stamp) == at
