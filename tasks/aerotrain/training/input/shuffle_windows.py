"""Windows of records: requested, announced, read and batched.

A reader requests the number of a window, waits for the file that says where its records are, and
reads them. It is made of graph operations only: a graph may be traced in one process and run in
another, on another machine, where it requests windows from that process's shard cache. So requests
and announcements are files, in the folder ``windows``. The number of the window that is read next
is written to the pipe ``requested``; inverted bits are the number of a group to be read later. The
file of a window appears when all shards of the window are on the disk. ``failed`` appears when no
more windows will come. Neither a request nor a failure takes disk space, so both work on a full
disk.

The windows of a worker are those of its leases, which come by a queue of that process.
"""

import contextlib
import os
import select
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import tensorflow as tf

from aerotrain.training.input.shards import FOLDER, INDEX

#: The folder of requests, the pipe, and the file that marks a failure, which has another name until
#: then.
_WINDOWS, _REQUESTED, _FAILED, _RUNNING = "windows", "requested", "failed", "running"

#: The digits of a window's number, in the name of its file and in a request.
_DIGITS = 19

#: AutoGraph would take each process a second at its start, and has nothing to convert here, because
#: all is operations already.
AS_WRITTEN = tf.autograph.experimental.do_not_convert

_MICROSECONDS_BETWEEN_LOOKS = 10_000

#: Bytes of a file that are read at once if its records are read in their order.
_BLOCK_BYTES = 2**20

#: The error of a reader when no more windows come.
NO_MORE = "no more shards come; the process that reads them says why"

#: The fields of a piece in a window's file: its shard's file, the begin of its bytes, their number
#: and the number that follows, and the same three of its records.
_PIECE = ["", *[np.int64(0)] * 6]

#: The fields of a part of a lease: the numbers of the lease and of the window, how many of its
#: shuffled records come before those of the lease, their number, and in the last part the number of
#: the lease's batches, otherwise 0.
PART = 5


class WindowRequests:
    """The side of the shard cache, in the folder ``windows`` of ``scratch``."""

    def __init__(self, scratch: Path) -> None:
        self.folder = scratch / _WINDOWS
        #: The number of the first window of the group that is to be read later, if one is known.
        self.ahead: int | None = None
        self._pipe = -1
        self._poll = select.poll()

    def open(self) -> None:
        """Start to accept requests, and discard those of an earlier process.

        Raises:
            OSError: the disk is full.
        """
        shutil.rmtree(self.folder, ignore_errors=True)
        self.folder.mkdir(parents=True)
        os.mkfifo(self.folder / _REQUESTED)
        # Opened for writing, too, so that a writer need not wait for a reader.
        self._pipe = os.open(self.folder / _REQUESTED, os.O_RDWR | os.O_NONBLOCK)
        self._poll.register(self._pipe, select.POLLIN)
        (self.folder / _RUNNING).touch()

    def close(self) -> None:
        """Accept no more requests."""
        # In this order; otherwise a request at this moment would wait for a reader forever.
        (self.folder / _REQUESTED).unlink(missing_ok=True)
        os.close(self._pipe)

    def wait(self, seconds: float) -> None:
        """Return at the next request, and after ``seconds`` at the latest."""
        self._poll.poll(1000 * seconds)

    def newest(self, otherwise: int) -> int:
        """The number of the last request, or ``otherwise``. Each number is written atomically."""
        with contextlib.suppress(BlockingIOError):
            while text := os.read(self._pipe, 1024 * _DIGITS):
                for begin in range(0, len(text), _DIGITS):
                    number = int(text[begin : begin + _DIGITS])
                    if number < 0:
                        self.ahead = ~number
                    else:
                        otherwise = number
        return otherwise

    def is_announced(self, number: int) -> bool:
        """Whether that window was announced, and not forgotten since."""
        return self._file(number).exists()

    def announce(self, number: int, content: str) -> None:
        """Write where the records of that window are.

        Raises:
            OSError: the disk is full.
        """
        partial = self.folder / "partial"
        partial.write_text(content)
        partial.replace(self._file(number))

    def forget(self, number: int) -> None:
        """Remove the file of that window, after it was read."""
        self._file(number).unlink(missing_ok=True)

    def forget_all(self) -> None:
        """Remove the files of all windows."""
        for file in self.folder.glob("[0-9]*"):
            file.unlink()

    def fail(self) -> None:
        """Announce that no more windows come."""
        (self.folder / _RUNNING).rename(self.folder / _FAILED)

    def _file(self, number: int) -> Path:
        return self.folder / f"{number:0{_DIGITS}d}"


def windows_from(root: str, width: int | None, first: int = 0) -> tf.data.Dataset:
    """The windows of the shard cache whose scratch folder is ``root``, which ends with a slash.

    An empty ``root`` is the working directory of the process that reads. ``width`` is the number of
    bytes of each record in a file, if all have the same. ``first`` is the number of the first
    window. An element is a tuple of the records, as ``(records, width)`` of ``uint8`` or as
    strings; the order in which they are read; and whether they end an epoch.
    """

    def window(number: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor, tf.Tensor]:
        records, order, drop, last = read_window(root, width, number)
        return records, order[drop:], last

    return tf.data.Dataset.counter(first).map(AS_WRITTEN(window)).prefetch(1)


def leased_windows(root: str, width: int | None, leases: tf.data.Dataset) -> tf.data.Dataset:
    """The windows of ``leases``, or what the leases have of them, otherwise as ``windows_from``.

    An element also has the number of its lease, and ends a lease instead of an epoch. A window in
    which one lease ends and the next one begins is read once.
    """

    def read(last: tuple[tf.Tensor, ...], part: tf.Tensor) -> tuple[tuple[tf.Tensor, ...], ...]:
        number, window, drop, count, batches = tf.unstack(part, PART)

        def new() -> tuple[tf.Tensor, ...]:
            return window, *read_window(root, width, window)[:2]

        def ahead() -> tuple[tf.Tensor, ...]:
            with tf.control_dependencies([_request(root, tf.bitwise.invert(window))]):
                return tuple(map(tf.identity, last))

        held = tf.cond(count == 0, ahead, lambda: tf.cond(window == last[0], lambda: last, new))
        return held, (held[1], held[2][drop : drop + count], batches > 0, number)

    none = (tf.constant(-1, tf.int64), no_records(width), tf.zeros([0], tf.int32))
    return leases.scan(none, AS_WRITTEN(read)).prefetch(1)


def leases_of(queue: str) -> tf.data.Dataset:
    """The parts of the leases that are sent to this process by ``queue``."""
    return _received(queue).unbatch()


def _received(queue: str) -> tf.data.Dataset:
    def received(_: tf.Tensor) -> tf.Tensor:
        [rows] = tf.raw_ops.QueueDequeueV2(handle=_queue(queue), component_types=[tf.int64])
        return tf.ensure_shape(rows, [None, PART])

    return tf.data.Dataset.counter().map(AS_WRITTEN(received))


def rows_of(queue: str) -> tf.data.Dataset:
    """The batches of the leases that are sent so, of which each row with a number ends a batch.

    An element is the number of the lease, and a row for each window that the batch has records of:
    the number of the window, how many of its shuffled records come before, and their number.
    """

    def batches(rows: tf.Tensor) -> tf.data.Dataset:
        ends = tf.where(rows[:, -1] > 0)[:, 0] + 1
        begins = tf.concat([tf.zeros([1], tf.int64), ends], 0)[:-1]
        cut = tf.data.Dataset.from_tensor_slices((begins, ends))
        return cut.map(lambda begin, end: (rows[begin, 0], rows[begin:end, 1:-1]))

    return _received(queue).flat_map(AS_WRITTEN(batches))


def send_lease(queue: str, rows: tf.Tensor) -> None:
    """Send ``Lease.rows`` of a lease, or of several or none, to the process that runs this."""
    tf.raw_ops.QueueEnqueueV2(handle=_queue(queue), components=[rows])


def _queue(name: str) -> tf.Tensor:
    # Found by its name in the process that runs this: a graph cannot carry a data set's resources.
    return tf.raw_ops.FIFOQueueV2(component_types=[tf.int64], shapes=[], shared_name=name)


def skip(batches: Iterator[Any], count: tf.Tensor) -> None:
    """Leave out ``count`` batches, of leases that were sent, and are run by others now."""

    def body(done: tf.Tensor) -> list[tf.Tensor]:
        next(batches)
        return [done + 1]

    tf.while_loop(lambda done: done < count, body, [tf.zeros_like(count)])


def next_of(batches: Iterator[Any], lease: tf.Tensor) -> Any:
    """The next batch, which is of that lease."""
    number, batch = next(batches)
    wrong = "a batch of another lease came from the input pipeline; this is a bug of aerotrain"
    # Without the condition by which ``tf.debugging.Assert`` would avoid to format the numbers.
    checked = tf.raw_ops.Assert(condition=number == lease, data=[wrong, number, lease])
    with tf.control_dependencies([checked]):
        return tf.nest.map_structure(tf.identity, batch)


def no_records(width: int | None) -> tf.Tensor:
    """The records of an empty window."""
    return tf.zeros([0], tf.string) if width is None else tf.zeros([0, width], tf.uint8)


def read_window(root: str, width: int | None, number: tf.Tensor) -> tuple[tf.Tensor, ...]:
    """The records of a window, their order, how many to drop, and whether it ends an epoch."""
    lines = tf.strings.split(_announced(root, number), "\n")
    drop, last, *seed = tf.unstack(
        tf.strings.to_number(tf.strings.split(lines[0], ","), tf.int64), 4
    )
    names, *numbers = tf.io.decode_csv(lines[1:], _PIECE)
    records = _records(tf.strings.join([root, FOLDER, "/", names]), numbers, width)
    count = tf.shape(records)[0]
    keys = tf.random.stateless_uniform([count], seed, None, None, tf.int32)
    return records, tf.argsort(keys, stable=True), drop, last == 1


def of_files(named: tf.data.Dataset, width: int) -> tf.data.Dataset:
    """The records of whole files in their order, in blocks: ``(records, width)`` of ``uint8``.

    ``named`` are the name and the size in bytes of each file.

    Each operation has a fixed cost, which the records of a block share.
    """
    most = width * max(1, _BLOCK_BYTES // width)

    def blocks(name: tf.Tensor, size: tf.Tensor) -> tf.data.Dataset:
        return tf.data.Dataset.range(0, size, most).map(lambda begin: block(name, begin, size))

    def block(name: tf.Tensor, begin: tf.Tensor, size: tf.Tensor) -> tf.Tensor:
        end = tf.minimum(begin + most, size)
        return _rows(_read(name, begin, end - begin, size - end), width)

    return named.flat_map(AS_WRITTEN(blocks))


def batches_of(
    windows: tf.data.Dataset, batch_size: int, *, drop_remainder: bool = False
) -> tf.data.Dataset:
    """Batches of the records of ``windows``, each in its order.

    The remainder of a window goes into the first batch of the next; that of an epoch or a lease is
    a smaller batch, or is dropped. An element is a batch, or the number of its lease and the batch.
    """
    records_spec = windows.element_spec[0]
    nothing = tf.zeros([0, *records_spec.shape[1:]], records_spec.dtype)

    def counted(left: tf.Tensor, window: tuple[tf.Tensor, ...]) -> tuple[tf.Tensor, ...]:
        records, order, last, *lease = window
        held = tf.shape(left)[0]
        size = held + tf.size(order)
        fill_all = tf.logical_and(last, not drop_remainder)
        count = tf.where(fill_all, -(-size // batch_size), size // batch_size)
        rest = tf.gather(records, order[tf.maximum(count * batch_size - held, 0) :])
        kept = tf.concat([left[: tf.where(count > 0, 0, held)], rest], 0)
        if drop_remainder:
            kept = kept[: tf.where(last, 0, tf.shape(kept)[0])]
        return kept, (left, records, order, count, *lease)

    def cut(
        left: tf.Tensor, records: tf.Tensor, order: tf.Tensor, count: tf.Tensor, *lease: tf.Tensor
    ) -> tf.data.Dataset:
        held = tf.shape(left)[0]

        def batch(number: tf.Tensor) -> Any:
            number = tf.cast(number, tf.int32)
            begin = tf.maximum(number * batch_size - held, 0)
            own = tf.gather(records, order[begin : (number + 1) * batch_size - held])
            whole = tf.concat([left[: tf.where(number == 0, held, 0)], own], 0)
            return (*lease, whole) if lease else whole

        return tf.data.Dataset.range(tf.cast(count, tf.int64)).map(batch)

    return windows.scan(nothing, AS_WRITTEN(counted)).flat_map(AS_WRITTEN(cut))


def _announced(root: str, number: tf.Tensor) -> tf.Tensor:
    """The content of that window's file, once it exists."""
    file = tf.strings.join([root, _WINDOWS, "/", _name(number)])

    def request() -> tf.Operation:
        return _request(root, number)

    def look_again(_: tf.Tensor) -> list[tf.Tensor]:
        # The names depend on the pause; otherwise TensorFlow would check for a file only once.
        failed, here = tf.unstack(tf.gather([[f"{root}{_WINDOWS}/{_FAILED}", file]], slept()))
        with tf.control_dependencies([tf.debugging.Assert(~_exists(failed), [NO_MORE])]):
            # Repeated, because a reader of a process that has ended may have requested another.
            requested = request()
        with tf.control_dependencies([requested]):
            return [_exists(here)]

    with tf.control_dependencies([request()]):
        there = _exists(file)
    there = tf.while_loop(lambda there: ~there, look_again, [there])[0]
    with tf.control_dependencies([there]):
        return tf.io.read_file(file)


def _request(root: str, number: tf.Tensor) -> tf.Operation:
    return tf.io.write_file(f"{root}{_WINDOWS}/{_REQUESTED}", _name(number))


def _name(number: tf.Tensor) -> tf.Tensor:
    return tf.strings.as_string(number, width=_DIGITS, fill="0")


def _exists(file: tf.Tensor) -> tf.Tensor:
    plain = tf.strings.regex_replace(file, r"([*?\[\\])", r"\\\1")
    return tf.size(tf.io.matching_files(plain)) > 0


def slept() -> tf.Tensor:
    """0, after a pause that occupies no thread."""
    form = {"output_types": [tf.int32], "output_shapes": [tf.TensorShape([])]}
    one = tf.raw_ops.TensorDataset(components=[0], output_shapes=form["output_shapes"])
    later = tf.raw_ops.SleepDataset(
        input_dataset=one,
        sleep_microseconds=tf.constant(_MICROSECONDS_BETWEEN_LOOKS, tf.int64),
        **form,
    )
    return tf.raw_ops.DatasetToSingleElement(dataset=later, **form)[0]


def _records(names: tf.Tensor, numbers: list[tf.Tensor], width: int | None) -> tf.Tensor:
    begin, size, _, _, count, _ = numbers
    if width is not None:
        # Piece by piece: all joined, and then decoded, would be in memory three times.
        pieces = tf.data.Dataset.from_tensor_slices((names, *numbers[:3]))
        rows = pieces.map(lambda *piece: _rows(_read(*piece), width))
        return rows.rebatch(tf.reduce_sum(count)).get_single_element()
    content = _joined(names, *numbers[:3])
    parts = (each * 16 for each in numbers[3:])
    index = tf.reshape(tf.io.decode_raw(_joined(names + INDEX, *parts), tf.int64), [-1, 2])
    moved = tf.repeat(tf.cumsum(size, exclusive=True) - begin, count)
    return tf.strings.substr(content, index[:, 0] + moved, index[:, 1])


def _joined(names: tf.Tensor, begin: tf.Tensor, size: tf.Tensor, left: tf.Tensor) -> tf.Tensor:
    """The concatenated bytes of all pieces."""
    pieces = tf.data.Dataset.from_tensor_slices((names, begin, size, left))
    read = pieces.map(_read).batch(tf.size(names, tf.int64)).get_single_element()
    return tf.strings.reduce_join(read)


def _read(name: tf.Tensor, begin: tf.Tensor, size: tf.Tensor, left: tf.Tensor) -> tf.Tensor:
    """``size`` bytes of a file, from ``begin`` on, after which ``left`` bytes follow."""
    return tf.data.FixedLengthRecordDataset(name, size, begin, left).get_single_element()


def _rows(content: tf.Tensor, width: int) -> tf.Tensor:
    return tf.reshape(tf.io.decode_raw(content, tf.uint8), [-1, width])
