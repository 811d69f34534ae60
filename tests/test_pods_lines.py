"""Lines of any length in a stream: what is kept, the note on the rest, and the memory used."""

import asyncio
import tracemalloc
from collections.abc import AsyncIterator, Iterable

import pytest

from aerotrain_airflow.kubernetes.lines import moment, readable, split_lines


def split(
    pieces: Iterable[bytes], longest: int, *, incomplete: bool = False
) -> list[tuple[bytes, int]]:
    async def sent() -> AsyncIterator[bytes]:
        for piece in pieces:
            yield piece

    async def read() -> list[tuple[bytes, int]]:
        return [line async for line in split_lines(sent(), longest, incomplete=incomplete)]

    return asyncio.run(read())


@pytest.mark.parametrize(
    ("pieces", "lines", "rest"),
    [
        ([b"one\ntwo\n"], [(b"one", 0), (b"two", 0)], []),
        ([b"on", b"e", b"\n", b"\n"], [(b"one", 0), (b"", 0)], []),
        ([b"one\ntw"], [(b"one", 0)], [(b"tw", 0)]),
        ([b"12345678\n"], [(b"12345678", 0)], []),
        ([b"12345678", b"9" * 92, b"9\nnext\n"], [(b"12345678", 93), (b"next", 0)], []),
        ([b"12345678", b"90"], [], [(b"12345678", 2)]),
    ],
)
def test_a_line_is_joined_from_any_pieces_and_cut_at_its_limit(
    pieces: list[bytes], lines: list[tuple[bytes, int]], rest: list[tuple[bytes, int]]
) -> None:
    assert split(pieces, 8) == lines
    assert split(pieces, 8, incomplete=True) == lines + rest


def test_an_endless_line_takes_bounded_memory() -> None:
    piece = b"x" * (1 << 16)
    tracemalloc.start()
    try:
        found = split([*[piece] * 4096, b"\n"], 1 << 16)  # 256 MiB
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < 1 << 20
    assert found == [(piece, 4095 << 16)]


@pytest.mark.parametrize(
    ("line", "cut", "text"),
    [
        (b"12345678", 0, "12345678"),
        (b"123456789", 0, "12345678 [1 more bytes of this line were cut]"),
        (b"1\xff3456789", 10, "1\ufffd345678 [11 more bytes of this line were cut]"),
    ],
)
def test_a_cut_line_states_how_many_bytes_were_cut(line: bytes, cut: int, text: str) -> None:
    assert readable(line, cut, 8) == text


@pytest.mark.parametrize(
    ("stamp", "at"),
    [
        ("2026-11-25T04:48:37.123456789Z", "2026-11-25T04:48:37.123456789Z"),
        ("2026-11-25T04:48:37.12Z", "2026-11-25T04:48:37.120000000Z"),
        ("2026-11-25T04:48:37Z", "2026-11-25T04:48:37.000000000Z"),
        # Nodes write their own time zone.
        ("2026-11-25T04:48:37.123456789+05:30", "2026-11-24T23:18:37.123456789Z"),
        # What a kubelet answers instead of lines, and what is no time at all.
        ("unable", ""),
        ("2026-11-25T04:48:37", ""),
    ],
)
def test_the_time_of_a_line_is_a_timestamp_in_utc_or_nothing(stamp: str, at: str) -> None:
    assert moment(stamp) == at
