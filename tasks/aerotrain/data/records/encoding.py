"""Serialize columns as ``tf.train.Example``, a batch of records at a time.

A serialized record is a sequence of pieces: message headers, whose bytes depend only on the
lengths of their contents, and values. A piece of equal length in every record is a block of bytes
``(records, width)``, and adjacent blocks are concatenated; other pieces are Arrow arrays, which
Arrow joins row by row in C++.
"""

from collections.abc import Callable, Sequence
from itertools import groupby
from typing import TypeAlias

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from aerotrain.data.records.columns import Column, Columns

_LENGTH_DELIMITED = 2  # https://protobuf.dev/programming-guides/encoding/#structure
_BYTES_LIST, _FLOAT_LIST, _INT64_LIST = 1, 2, 3  # field numbers of tensorflow.Feature

_EMPTY = pa.scalar(b"", pa.large_binary())

Block = NDArray[np.uint8]
Piece: TypeAlias = Block | pa.LargeBinaryArray


def encode(columns: Columns) -> pa.LargeBinaryArray:
    """Each record of ``columns``, which have equal lengths, as a serialized Example.

    Features are sorted by name, so that equal records are equal bytes.
    """
    return joined(pieces_of(columns))


def pieces_of(columns: Columns) -> list[Piece]:
    """The pieces of each record, in order."""
    count = len(next(iter(columns.values())))
    pieces: list[Piece] = []
    for name in sorted(columns):
        pieces += _feature(name, columns[name])
    lengths = _total_lengths(pieces, count)
    return [headers(lengths, lambda length: _tag_and_length(1, length)), *pieces]


def joined(pieces: list[Piece]) -> pa.LargeBinaryArray:
    """Concatenate the pieces of each row."""
    rows = []
    for is_block, run in groupby(pieces, lambda piece: isinstance(piece, np.ndarray)):
        side_by_side = list(run)
        rows += [as_array(np.concatenate(side_by_side, axis=1))] if is_block else side_by_side
    return rows[0] if len(rows) == 1 else pc.binary_join_element_wise(*rows, _EMPTY)


def as_array(piece: Piece) -> pa.LargeBinaryArray:
    """A piece as an Arrow array; the bytes of a block are not copied."""
    if not isinstance(piece, np.ndarray):
        return piece
    count, width = piece.shape
    ends = np.arange(count + 1, dtype=np.int64) * width
    return binary_array(ends, np.ascontiguousarray(piece))


def as_piece(array: pa.LargeBinaryArray) -> Piece:
    """An array as a block if its values have equal lengths, else unchanged."""
    widths = lengths_of(array)
    if not len(array) or (widths != widths[0]).any():
        return array
    return content_of(array).reshape(len(array), -1)


def binary_array(offsets: NDArray[np.int64], content: NDArray[np.uint8]) -> pa.LargeBinaryArray:
    """The array whose value ``i`` is ``content[offsets[i]:offsets[i + 1]]``."""
    buffers = [None, pa.py_buffer(offsets), pa.py_buffer(content)]
    return pa.LargeBinaryArray.from_buffers(pa.large_binary(), len(offsets) - 1, buffers)


def lengths_of(piece: Piece) -> NDArray[np.int64]:
    """The length of each row in bytes."""
    if isinstance(piece, np.ndarray):
        return np.full(len(piece), piece.shape[1], np.int64)
    return pc.binary_length(piece).to_numpy(zero_copy_only=False)


def _total_lengths(pieces: Sequence[Piece], count: int) -> NDArray[np.int64]:
    return sum((lengths_of(piece) for piece in pieces), np.zeros(count, np.int64))


def _feature(name: str, column: Column) -> list[Piece]:
    """One entry of the map in ``tensorflow.Features``, for each record."""
    kind, *content = _list_of(column)
    named = _message(1, name.encode())

    def header(length: int) -> bytes:
        """All bytes that precede ``length`` bytes of a list's content."""
        opened = _tag_and_length(kind, length)
        feature = _tag_and_length(2, len(opened) + length) + opened
        return _tag_and_length(1, len(named) + len(feature) + length) + named + feature

    lengths = _total_lengths(content, len(column))
    return [headers(lengths, header), *content]


def _list_of(column: Column) -> tuple[int, *tuple[Piece, ...]]:
    """The field number in ``tensorflow.Feature`` of the column's list, and the list's content."""
    count, dtype = len(column), column.feature.dtype
    if column.is_text:
        if column.feature.shape == ():
            return _BYTES_LIST, *_in_message(as_piece(column.values))
        return _BYTES_LIST, _regrouped(joined(_in_message(column.values)), count)
    flat = column.values.reshape(count, -1)
    if column.feature.is_raw:
        raw = flat.astype(flat.dtype.newbyteorder("<"), copy=False)
        kind, values = _BYTES_LIST, np.ascontiguousarray(raw).view(np.uint8)
    elif dtype == "float32":
        kind, values = _FLOAT_LIST, flat.astype("<f4", copy=False).view(np.uint8)
    else:
        kind, values = _INT64_LIST, _varints(flat.astype(np.int64, copy=False))
    return kind, *_in_message(values)


def _in_message(values: Piece) -> list[Piece]:
    """The values as field 1: packed numbers, or one string."""
    return [headers(lengths_of(values), lambda length: _tag_and_length(1, length)), values]


def _regrouped(each: pa.LargeBinaryArray, count: int) -> pa.LargeBinaryArray:
    """Merge the adjacent values of each record into one, without a copy."""
    size = len(each) // count if count else 0
    offsets, content = buffers_of(each)
    starts = np.zeros(count + 1, np.int64) if not size else offsets[::size]
    return binary_array(np.ascontiguousarray(starts), content)


def buffers_of(array: pa.LargeBinaryArray) -> tuple[NDArray[np.int64], NDArray[np.uint8]]:
    """The offsets of an array's values, and the buffer that they index."""
    _, offsets, content = array.buffers()
    ends = np.frombuffer(offsets, np.int64)[array.offset : array.offset + len(array) + 1]
    empty = np.zeros(0, np.uint8)
    return ends, empty if content is None else np.frombuffer(content, np.uint8)


def content_of(array: pa.LargeBinaryArray) -> NDArray[np.uint8]:
    """The bytes of all values, concatenated, without a copy."""
    offsets, content = buffers_of(array)
    return content[offsets[0] : offsets[-1]]


def _varints(values: NDArray[np.int64]) -> Piece:
    """Rows of integers as varints; negative ones as 64-bit two's complement."""
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
    return as_piece(binary_array(np.concatenate([[0], np.cumsum(lengths)]), encoded[used]))


def headers(lengths: NDArray[np.int64], header: Callable[[int], bytes]) -> Piece:
    """``header(length)`` for each row; computed once for each distinct length."""
    if not len(lengths) or (lengths == lengths[0]).all():  # the usual case; it needs no sort
        alike = np.frombuffer(header(int(lengths[0])) if len(lengths) else b"", np.uint8)
        return np.broadcast_to(alike, (len(lengths), len(alike)))
    different, which = np.unique(lengths, return_inverse=True)
    made = [header(int(length)) for length in different]
    width = len(made[0])
    if all(len(each) == width for each in made):
        return np.frombuffer(b"".join(made), np.uint8).reshape(len(made), width)[which]
    return pa.array(made, pa.large_binary()).take(pa.array(which))


def _message(number: int, content: bytes) -> bytes:
    return _tag_and_length(number, len(content)) + content


def _tag_and_length(number: int, length: int) -> bytes:
    """The tag and length of a length-delimited field: a message, bytes, or packed numbers."""
    encoded = bytearray((number << 3 | _LENGTH_DELIMITED,))
    while length > 0x7F:
        encoded.append(length & 0x7F | 0x80)
        length >>= 7
    encoded.append(length)
    return bytes(encoded)
