"""Columns as serialized ``tf.train.Example``, a batch of records at a time.

A record is a row of pieces: the headers of messages, whose bytes depend on nothing but the
lengths of what they hold, and values. Where a piece is as long in every record it is a block
of bytes ``(records, width)``, and blocks are copied side by side; other pieces are arrays of
Arrow's, which joins them row by row in C++.
"""

from collections.abc import Callable, Sequence
from itertools import groupby
from typing import TypeAlias

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from aerotrain.records.columns import Column, Columns

_LENGTH_DELIMITED = 2  # https://protobuf.dev/programming-guides/encoding/#structure
_BYTES_LIST, _FLOAT_LIST, _INT64_LIST = 1, 2, 3  # field numbers of tensorflow.Feature

_NOTHING = pa.scalar(b"", pa.large_binary())

Block = NDArray[np.uint8]
Piece: TypeAlias = Block | pa.LargeBinaryArray


def encode(columns: Columns) -> pa.LargeBinaryArray:
    """Each record of ``columns``, which are equally long, as a serialized Example.

    Features are in the order of their names, so that equal records are equal bytes.
    """
    return joined(pieces_of(columns))


def pieces_of(columns: Columns) -> list[Piece]:
    """All that stands in each record, piece after piece."""
    count = len(next(iter(columns.values())))
    pieces: list[Piece] = []
    for name in sorted(columns):
        pieces += _feature(name, columns[name])
    lengths = _summed(pieces, count)
    return [_headers(lengths, lambda length: _opened(1, length)), *pieces]


def joined(pieces: list[Piece]) -> pa.LargeBinaryArray:
    """The pieces of each row after one another."""
    rows = []
    for is_block, run in groupby(pieces, lambda piece: isinstance(piece, np.ndarray)):
        side_by_side = list(run)
        rows += [rows_of(np.concatenate(side_by_side, axis=1))] if is_block else side_by_side
    return rows[0] if len(rows) == 1 else pc.binary_join_element_wise(*rows, _NOTHING)


def rows_of(piece: Piece) -> pa.LargeBinaryArray:
    """A piece as Arrow's array; a block's bytes are not copied."""
    if not isinstance(piece, np.ndarray):
        return piece
    count, width = piece.shape
    ends = np.arange(count + 1, dtype=np.int64) * width
    return texts(ends, np.ascontiguousarray(piece))


def as_piece(array: pa.LargeBinaryArray) -> Piece:
    """An array as a block of its bytes where they can be one, else as it is."""
    offsets, content = parts_of(array)
    widths = np.diff(offsets)
    if not len(array) or (widths != widths[0]).any():
        return array
    return content[offsets[0] : offsets[-1]].reshape(len(array), -1)


def texts(offsets: NDArray[np.int64], content: NDArray[np.uint8]) -> pa.LargeBinaryArray:
    """The array whose value ``i`` is ``content[offsets[i]:offsets[i + 1]]``."""
    buffers = [None, pa.py_buffer(offsets), pa.py_buffer(content)]
    return pa.LargeBinaryArray.from_buffers(pa.large_binary(), len(offsets) - 1, buffers)


def lengths_of(piece: Piece) -> NDArray[np.int64]:
    """How long each row is, in bytes."""
    if isinstance(piece, np.ndarray):
        return np.full(len(piece), piece.shape[1], np.int64)
    return pc.binary_length(piece).to_numpy(zero_copy_only=False)


def _summed(pieces: Sequence[Piece], count: int) -> NDArray[np.int64]:
    return sum((lengths_of(piece) for piece in pieces), np.zeros(count, np.int64))


def _feature(name: str, column: Column) -> list[Piece]:
    """One entry of the map in ``tensorflow.Features``, for each record."""
    kind, *content = _list_of(column)
    named = _message(1, name.encode())

    def header(length: int) -> bytes:
        """All that stands before ``length`` bytes of a list's content."""
        opened = _opened(kind, length)
        feature = _opened(2, len(opened) + length) + opened
        return _opened(1, len(named) + len(feature) + length) + named + feature

    lengths = _summed(content, len(column))
    return [_headers(lengths, header), *content]


def _list_of(column: Column) -> tuple[int, *tuple[Piece, ...]]:
    """The field of ``tensorflow.Feature`` that holds the column, and the list's content."""
    count, dtype = len(column), column.feature.dtype
    if column.is_text:
        if column.feature.shape == ():
            return _BYTES_LIST, *_in_message(as_piece(column.values))
        return _BYTES_LIST, _regrouped(joined(_in_message(column.values)), count)
    flat = column.values.reshape(count, -1)
    if dtype == "uint8":
        kind, values = _BYTES_LIST, flat
    elif dtype == "float32":
        kind, values = _FLOAT_LIST, flat.astype("<f4", copy=False).view(np.uint8)
    else:
        kind, values = _INT64_LIST, _varints(flat.astype(np.int64, copy=False))
    return kind, *_in_message(values)


def _in_message(values: Piece) -> list[Piece]:
    """The values as field 1: packed numbers, or one string."""
    return [_headers(lengths_of(values), lambda length: _opened(1, length)), values]


def _regrouped(each: pa.LargeBinaryArray, count: int) -> pa.LargeBinaryArray:
    """Several values a record as one, which they are already where they lie."""
    size = len(each) // count if count else 0
    offsets, content = parts_of(each)
    starts = np.zeros(count + 1, np.int64) if not size else offsets[::size]
    return texts(np.ascontiguousarray(starts), content)


def parts_of(array: pa.LargeBinaryArray) -> tuple[NDArray[np.int64], NDArray[np.uint8]]:
    """The offsets of an array's values, and the bytes that they point into."""
    _, offsets, content = array.buffers()
    ends = np.frombuffer(offsets, np.int64)[array.offset : array.offset + len(array) + 1]
    empty = np.zeros(0, np.uint8)
    return ends, empty if content is None else np.frombuffer(content, np.uint8)


def _varints(values: NDArray[np.int64]) -> Piece:
    """Rows of integers as varints; one below zero as the 64 bits of its two's complement."""
    left = values.view(np.uint64)
    width = max(1, -(-int(left.max(initial=0)).bit_length() // 7))
    if width == 1:
        return left.astype(np.uint8)
    shifts = np.arange(width, dtype=np.uint64) * np.uint64(7)
    digits = left[..., None] >> shifts
    used = digits != 0
    used[..., 0] = True
    encoded = (digits & np.uint64(0x7F)).astype(np.uint8)
    encoded[..., :-1] |= used[..., 1:].view(np.uint8) << 7  # another byte follows
    lengths = used.sum(axis=(1, 2), dtype=np.int64)
    return as_piece(texts(np.concatenate([[0], np.cumsum(lengths)]), encoded[used]))


def _headers(lengths: NDArray[np.int64], header: Callable[[int], bytes]) -> Piece:
    """``header(length)`` for each row; it is made once for each length that there is."""
    if not len(lengths):
        return np.zeros((0, 0), np.uint8)
    if (lengths == lengths[0]).all():  # by far the usual case, and no sort is needed to see it
        alike = np.frombuffer(header(int(lengths[0])), np.uint8)
        return np.broadcast_to(alike, (len(lengths), len(alike)))
    different, which = np.unique(lengths, return_inverse=True)
    made = [header(int(length)) for length in different]
    width = len(made[0])
    if all(len(each) == width for each in made):
        return np.frombuffer(b"".join(made), np.uint8).reshape(len(made), width)[which]
    return pa.array(made, pa.large_binary()).take(pa.array(which))


def _message(number: int, content: bytes) -> bytes:
    return _opened(number, len(content)) + content


def _opened(number: int, length: int) -> bytes:
    """The start of a length-delimited field: a message in a message, bytes, or packed numbers."""
    encoded = bytearray((number << 3 | _LENGTH_DELIMITED,))
    while length > 0x7F:
        encoded.append(length & 0x7F | 0x80)
        length >>= 7
    encoded.append(length)
    return bytes(encoded)
