"""The shard cache: downloads shards from the store while a training reads them.

A thread downloads shards in the order in which they are read, within a limit of disk space, and
announces windows of records by files: see ``window_requests.py``.
"""

import threading
import time
from collections import deque
from collections.abc import Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path

from aerotrain.contract.steps import TrainArguments
from aerotrain.data.dataset import Dataset, Shard
from aerotrain.store import StoreFull, StoreUnavailable, open_store
from aerotrain.store.errors import store_error
from aerotrain.training.input.index import INDEX, Indexed, write_index
from aerotrain.training.input.order import Order, Window
from aerotrain.training.input.rows import layout_of
from aerotrain.training.input.shards import (
    FOLDER,
    RANGES_AT_ONCE,
    SHARDS_AT_ONCE,
    TRAIN_SPLIT,
    bring,
    split_of,
)
from aerotrain.training.input.window_requests import WindowRequests

#: Windows that are written ahead of the requested one, if their shards are on the disk.
_AHEAD = 64

_SECONDS_BETWEEN_LOOKS = 0.02

#: Seconds until a shard is requested again, if the store was unavailable or the disk full.
_SECONDS_BETWEEN_TRIES = 2.0


class ShardCache:
    """Downloads the shards of ``order`` of the data set at ``url`` below ``scratch``.

    Windows are numbered from the position ``begin``, an epoch and the records of it that are done.
    A request for an earlier window than before starts over, as a restarted chief does. With
    ``ends``, epochs end; otherwise the records of one epoch are followed by those of the next. With
    ``indexed``, for records of different lengths, an index is written for each shard. ``patience``
    is the number of seconds for which the store may be unavailable or the disk full; meanwhile a
    training uses the shards on the disk, or waits.
    """

    def __init__(
        self,
        url: str,
        order: Order,
        scratch: Path,
        *,
        indexed: bool,
        ends: bool = True,
        begin: tuple[int, int] = (0, 0),
        patience: float = 3600.0,
    ) -> None:
        self.failure: BaseException | None = None
        self._store = open_store(url)
        self._order = order
        self._scratch = scratch
        self._requests = WindowRequests(scratch)
        self._indexed = indexed
        self._ends = ends
        self._begin = begin
        self._here: dict[str, Indexed] = {}
        self._coming: dict[str, Future[Indexed]] = {}
        self._shards = ThreadPoolExecutor(SHARDS_AT_ONCE)
        self._ranges = ThreadPoolExecutor(RANGES_AT_ONCE)
        self._patience = patience
        self._held_since: float | None = None
        self._not_before = 0.0
        self._begun = False
        self._stopped = threading.Event()
        self._failed = threading.Event()
        self._thread = threading.Thread(target=self._run, name="shards", daemon=True)

    def start(self) -> None:
        """Start the download of shards, and discard the requests of an earlier process."""
        self._requests.open()
        if self._order.shard_cache_bytes:
            for shard in self._order.shards:
                self._drop(shard.file)
        self._rewind()
        self._thread.start()

    def stop(self) -> None:
        """Stop downloading, and return when the thread has ended."""
        self._stopped.set()
        self._thread.join()
        self._requests.close()

    def failed(self) -> BaseException:
        """Wait until the cache fails, without a time limit, and return the error."""
        self._failed.wait()
        assert self.failure is not None
        return self.failure

    @property
    def is_held(self) -> bool:
        """Whether it waits for the store to be available, or for disk space."""
        return self._held_since is not None

    def _run(self) -> None:
        try:
            while not self._stopped.is_set():
                try:
                    self._turn()
                except OSError as error:
                    self._hold(store_error(error, str(self._requests.folder)))
                self._requests.wait(_SECONDS_BETWEEN_LOOKS)
        except BaseException as error:  # noqa: BLE001 -- the readers of windows must be notified
            self._fail(error)
        finally:
            self._ranges.shutdown(wait=False, cancel_futures=True)
            self._shards.shutdown(cancel_futures=True)

    def _fail(self, error: BaseException) -> None:
        self.failure = error
        try:
            self._requests.refuse()
        finally:
            self._failed.set()

    def _turn(self) -> None:
        """Process requests and finished downloads, and start new ones."""
        came, failed = self._take_what_came()
        asked = self._requests.newest(self._number)
        if not (came or self.is_held or asked != self._number or not self._written):
            return
        if asked < self._number:
            self._rewind()
        while self._number < asked:
            self._requests.forget(self._number)
            self._written.discard(self._number)
            self._windows_ahead(1).popleft()
            self._number += 1
        may = time.monotonic() >= self._not_before
        if failed is None and may and len(self._here) < len(self._order.shards):
            self._bring(self._wanted())
        self._write_windows()
        if failed is not None:
            raise failed  # raised only now, so that what was downloaded can be read

    def _rewind(self) -> None:
        self._requests.forget_all()
        self._number = 0
        self._written: set[int] = set()
        self._planned: Iterator[Window] = self._order.windows(*self._begin)
        self._ahead: deque[Window] = deque()

    def _windows_ahead(self, count: int) -> deque[Window]:
        while len(self._ahead) < count:
            self._ahead.append(next(self._planned))
        return self._ahead

    def _wanted(self) -> list[Shard]:
        """The shards that are read next and fit on the disk, in their order."""
        wanted: dict[str, Shard] = {}
        size = 0
        for window in self._to_come():
            if len(wanted) == len(self._order.shards):
                break
            for shard in (piece.shard for piece in window.pieces):
                if shard.file in wanted:
                    continue
                size += shard.bytes
                if self._order.shard_cache_bytes and size > self._order.shard_cache_bytes:
                    return list(wanted.values())
                wanted[shard.file] = shard
        return list(wanted.values())

    def _to_come(self) -> Iterator[Window]:
        yield from self._ahead
        for window in self._planned:
            self._ahead.append(window)
            yield window

    def _bring(self, wanted: list[Shard]) -> None:
        names = {shard.file for shard in wanted}
        if self._coming.keys() - names:
            return  # downloads that are not wanted any more occupy space until they are done
        for file in set(self._here) - names:
            if self._room(wanted) < 0:
                self._drop(file)
        for shard in wanted:
            if shard.file in self._here or shard.file in self._coming:
                continue
            self._coming[shard.file] = self._shards.submit(self._bring_one, shard)

    def _room(self, wanted: list[Shard]) -> int:
        """Bytes of the limit that remain with all wanted and all present shards on the disk."""
        if not self._order.shard_cache_bytes:
            return 0
        sizes = {shard.file: shard.bytes for shard in wanted}
        sizes |= {file: each.shard.bytes for file, each in self._here.items()}
        return self._order.shard_cache_bytes - sum(sizes.values())

    def _bring_one(self, shard: Shard) -> Indexed:
        path = bring(self._store, shard, self._scratch, self._ranges)
        if not self._indexed:
            return Indexed(shard, None)
        try:
            return write_index(shard, path)
        except OSError as error:
            raise store_error(error, str(path)) from error

    def _take_what_came(self) -> tuple[bool, BaseException | None]:
        """Whether any download has ended, and the error after which none should be started."""
        ended = [file for file, future in self._coming.items() if future.done()]
        failed = None
        for file in ended:
            future = self._coming.pop(file)
            error = future.exception()
            if error is None:
                self._here[file] = future.result()
                self._held_since = None
                continue
            try:
                self._hold(error)
            except BaseException as final:  # noqa: BLE001 -- what has come may be read first
                failed = final
        return bool(ended), failed

    def _hold(self, error: BaseException) -> None:
        """Retry later if the store may recover or the disk may get space; otherwise raise."""
        passes = isinstance(error, StoreFull) and self._begun
        if not (passes or isinstance(error, StoreUnavailable)):
            raise error
        now = time.monotonic()
        if self._held_since is None:
            self._held_since = now
            print(f"warning: {error}; training takes what is here, then waits", flush=True)
        if now - self._held_since > self._patience:
            raise error
        self._not_before = now + _SECONDS_BETWEEN_TRIES

    def _drop(self, file: str) -> None:
        self._here.pop(file, None)
        path = self._scratch / FOLDER / file
        path.unlink(missing_ok=True)
        path.with_name(path.name + INDEX).unlink(missing_ok=True)

    def _write_windows(self) -> None:
        for number, window in enumerate(self._windows_ahead(_AHEAD), self._number):
            if number >= self._number + _AHEAD or not self._is_here(window):
                return
            if number in self._written:
                continue
            self._requests.answer(number, self._told(window))
            self._written.add(number)
            self._begun, self._held_since = True, None

    def _is_here(self, window: Window) -> bool:
        return all(piece.shard.file in self._here for piece in window.pieces)

    def _told(self, window: Window) -> str:
        """The content of a window's file: a line for the window, then one for each piece."""
        last = window.last and self._ends
        lines: list[list[int | str]] = [[window.drop, int(last), *window.seed]]
        for piece in window.pieces:
            indexed = self._here[piece.shard.file]
            begin, end = (indexed.offset(each) for each in (piece.first, piece.first + piece.count))
            left = piece.shard.records - piece.first - piece.count
            content = [begin, end - begin, piece.shard.bytes - end]
            lines.append([piece.shard.file, *content, piece.first, piece.count, left])
        return "\n".join(",".join(map(str, line)) for line in lines)


def shard_cache_of(
    arguments: TrainArguments,
    dataset: Dataset,
    shards: Sequence[Shard],
    scratch: Path,
    *,
    begin: tuple[int, int] = (0, 0),
    ends: bool = True,
) -> ShardCache:
    """The shard cache of ``shards`` of the train split, for the reader in ``InputPipeline``.

    ``begin`` is an epoch and the records of it that are done. ``ends`` is whether epochs end with a
    smaller batch.
    """
    order = order_of(arguments, shards)
    indexed = layout_of(dataset.schema, split_of(dataset, TRAIN_SPLIT).shards) is None
    return ShardCache(
        arguments.data,
        order,
        scratch,
        indexed=indexed,
        ends=ends,
        begin=begin,
        patience=arguments.store_timeout,
    )


def order_of(arguments: TrainArguments, shards: Sequence[Shard]) -> Order:
    """The order in which a job reads shards of its train split."""
    return Order(shards=shards, seed=arguments.seed, shard_cache_bytes=arguments.shard_cache_bytes)
