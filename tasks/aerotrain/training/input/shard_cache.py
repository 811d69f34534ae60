"""The shard cache: downloads shards from the store while a training reads them.

A thread downloads shards in the order in which they are read, within a limit of disk space, and
announces windows of records by files: see ``shuffle_windows.py``.
"""

import itertools
import threading
import time
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import KW_ONLY, dataclass
from pathlib import Path
from typing import Self

from aerotrain.contract.training import TrainArguments
from aerotrain.data.dataset import TRAIN_SPLIT, Dataset, Shard
from aerotrain.store import StoreFull, StoreUnavailable, open_store
from aerotrain.store.errors import store_error
from aerotrain.training.input.batches import layout_of
from aerotrain.training.input.order import Order, Window
from aerotrain.training.input.shards import (
    FOLDER,
    INDEX,
    RANGES_AT_ONCE,
    SHARDS_AT_ONCE,
    Indexed,
    download_shard,
    split_of,
    write_index,
)
from aerotrain.training.input.shuffle_windows import WindowRequests

#: Windows that are announced from the requested one on, if their shards are on the disk.
_AHEAD = 64

_SECONDS_BETWEEN_LOOKS = 0.02

#: Seconds until a shard is requested again, if the store was unavailable or the disk full.
_SECONDS_BETWEEN_TRIES = 2.0


@dataclass
class ShardCache:
    """Downloads the shards of ``order`` of the data set at ``url`` below ``scratch``.

    Windows are numbered from the position ``begin``, an epoch and the records of it that are done.
    A request for an earlier window than before starts over, as a restarted chief does. Without it,
    or if batches are leased, any window may be requested by its own number; the shards of those
    that follow in its group are downloaded, and then those of the group ahead.
    With ``indexed``, for records of different lengths, an index is written for each shard. The
    store may be unavailable, or the disk full, for ``store_timeout`` seconds; meanwhile a training
    uses the shards on the disk, or waits.
    """

    url: str
    order: Order
    scratch: Path
    _: KW_ONLY
    indexed: bool
    begin: tuple[int, int] | None = (0, 0)
    store_timeout: float = 3600.0

    def __post_init__(self) -> None:
        self.failure: BaseException | None = None
        self._store = open_store(self.url)
        self._requests = WindowRequests(self.scratch)
        #: The number of the requested window, and the windows from it on.
        self._number, self._windows = 0, self._windows_from(0)
        if self._is_any_requested:  # nothing is needed before the first request
            self._number, self._windows = -1, iter(())
        self._cached: dict[str, Indexed] = {}
        self._downloads: dict[str, Future[Indexed]] = {}
        self._shards = ThreadPoolExecutor(SHARDS_AT_ONCE)
        self._ranges = ThreadPoolExecutor(RANGES_AT_ONCE)
        self._waiting_since: float | None = None
        self._retry_at = 0.0
        #: A disk that is full from the beginning is an error; later, space may be freed.
        self._may_be_full = False
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._run, name="shards", daemon=True)

    @classmethod
    def of(
        cls,
        arguments: TrainArguments,
        dataset: Dataset,
        order: Order,
        scratch: Path,
        *,
        begin: tuple[int, int] | None = None,
    ) -> Self:
        """The cache of the shards of ``order``, in the train split, for ``InputPipeline``."""
        layout = layout_of(dataset.schema, split_of(dataset, TRAIN_SPLIT).shards)
        return cls(
            arguments.data,
            order,
            scratch,
            indexed=layout is None,
            begin=begin,
            store_timeout=arguments.store_timeout,
        )

    def start(self) -> None:
        """Start the download of shards, and discard the requests of an earlier process."""
        self._requests.open()
        if self.order.shard_cache_bytes:
            for shard in self.order.shards:
                self._drop(shard.file)
        self._thread.start()

    def stop(self) -> None:
        """Stop downloading, and return when the thread has ended."""
        self._stopped.set()
        self._thread.join()
        self._requests.close()

    def failed(self) -> BaseException:
        """Wait until the cache fails, without a time limit, and return the error."""
        while self.failure is None:
            self._thread.join(_SECONDS_BETWEEN_LOOKS)
        return self.failure

    @property
    def is_waiting(self) -> bool:
        """Whether it waits for the store to be available, or for disk space."""
        return self._waiting_since is not None

    def _run(self) -> None:
        try:
            while not self._stopped.is_set():
                try:
                    self._turn()
                except OSError as error:
                    self._retry_later(store_error(error, str(self._requests.folder)))
                self._requests.wait(_SECONDS_BETWEEN_LOOKS)
        except BaseException as error:  # noqa: BLE001 -- the readers of windows must be notified
            self.failure = error
            self._requests.fail()
        finally:
            self._ranges.shutdown(wait=False, cancel_futures=True)
            self._shards.shutdown(cancel_futures=True)

    def _turn(self) -> None:
        """Process requests and finished downloads, and start new ones."""
        ended, failed = self._finished_downloads()
        ahead = self._requests.ahead
        requested = self._requests.newest(self._number)
        is_served = requested == self._number and self._requests.is_announced(requested)
        if is_served and ahead == self._requests.ahead and not ended and not self.is_waiting:
            return
        first = self.order.first_of(requested) if self._is_any_requested else 0
        if not first <= self._number <= requested:
            self._requests.forget_all()
            self._requests.ahead = None
            self._number, self._windows = first, self._windows_from(first)
        while self._number < requested:
            self._requests.forget(self._number)
            next(self._windows)
            self._number += 1
        may = time.monotonic() >= self._retry_at
        if failed is None and may and len(self._cached) < len(self.order.shards):
            self._start_downloads(self._wanted())
        self._announce_windows()
        if failed is not None:
            raise failed  # raised only now, so that what was downloaded can be read

    @property
    def _is_any_requested(self) -> bool:
        return self.begin is None or self.order.batch_size is not None

    def _windows_from(self, first: int) -> Iterator[Window]:
        """All windows, or those of the group whose first one has that number."""
        if self.begin is None or self.order.batch_size is not None:
            return self.order.group(first)
        return self.order.windows(*self.begin)

    def _upcoming(self) -> Iterator[Window]:
        """The windows from the requested one on, which stays the next."""
        self._windows, upcoming = itertools.tee(self._windows)
        return upcoming

    def _wanted(self) -> list[Shard]:
        """The shards that are read next and fit on the disk, in their order."""
        wanted: dict[str, Shard] = {}
        size, limit = 0, self.order.shard_cache_bytes
        later = self._requests.ahead
        ahead = () if later is None else self.order.group(later)
        for window in itertools.chain(self._upcoming(), ahead):
            for shard in (piece.shard for piece in window.pieces):
                if shard.file in wanted:
                    continue
                size += shard.bytes
                if limit and size > limit:
                    return list(wanted.values())
                wanted[shard.file] = shard
            if len(wanted) == len(self.order.shards):
                break
        return list(wanted.values())

    def _start_downloads(self, wanted: list[Shard]) -> None:
        names = {shard.file for shard in wanted}
        if self._downloads.keys() - names:
            return  # downloads that are not wanted any more occupy space until they are done
        for file in set(self._cached) - names:
            if self._free_bytes(wanted) < 0:
                self._drop(file)
        for shard in wanted:
            if shard.file in self._cached or shard.file in self._downloads:
                continue
            self._downloads[shard.file] = self._shards.submit(self._download, shard)

    def _free_bytes(self, wanted: list[Shard]) -> int:
        """Bytes of the limit that remain with all wanted and all present shards on the disk."""
        if not self.order.shard_cache_bytes:
            return 0
        sizes = {shard.file: shard.bytes for shard in wanted}
        sizes |= {file: each.shard.bytes for file, each in self._cached.items()}
        return self.order.shard_cache_bytes - sum(sizes.values())

    def _download(self, shard: Shard) -> Indexed:
        path = download_shard(self._store, shard, self.scratch, self._ranges)
        if not self.indexed:
            return Indexed(shard, None)
        try:
            return write_index(shard, path)
        except OSError as error:
            raise store_error(error, str(path)) from error

    def _finished_downloads(self) -> tuple[bool, BaseException | None]:
        """Whether any download has ended, and the error after which none should be started."""
        ended = [file for file, future in self._downloads.items() if future.done()]
        failed = None
        for file in ended:
            future = self._downloads.pop(file)
            error = future.exception()
            if error is None:
                self._cached[file] = future.result()
                self._waiting_since = None
                continue
            try:
                self._retry_later(error)
            except BaseException as final:  # noqa: BLE001 -- what has come may be read first
                failed = final
        return bool(ended), failed

    def _retry_later(self, error: BaseException) -> None:
        """Retry later if the store may recover or the disk may get space; otherwise raise."""
        passes = isinstance(error, StoreFull) and self._may_be_full
        if not (passes or isinstance(error, StoreUnavailable)):
            raise error
        now = time.monotonic()
        if self._waiting_since is None:
            self._waiting_since = now
            print(f"warning: {error}; training reads what is on the disk, then waits", flush=True)
        if now - self._waiting_since > self.store_timeout:
            raise error
        self._retry_at = now + _SECONDS_BETWEEN_TRIES

    def _drop(self, file: str) -> None:
        self._cached.pop(file, None)
        path = self.scratch / FOLDER / file
        path.unlink(missing_ok=True)
        path.with_name(path.name + INDEX).unlink(missing_ok=True)

    def _announce_windows(self) -> None:
        """Announce the next windows, up to the first one whose shards are not on the disk."""
        for number, window in enumerate(itertools.islice(self._upcoming(), _AHEAD), self._number):
            if not all(piece.shard.file in self._cached for piece in window.pieces):
                return
            if not self._requests.is_announced(number):
                self._requests.announce(number, self._announcement(window))
                self._may_be_full, self._waiting_since = True, None

    def _announcement(self, window: Window) -> str:
        """The content of a window's file: a line for the window, then one for each piece."""
        lines: list[list[int | str]] = [[window.drop, int(window.last), *window.seed]]
        for piece in window.pieces:
            indexed = self._cached[piece.shard.file]
            begin, end = (indexed.offset(each) for each in (piece.first, piece.first + piece.count))
            left = piece.shard.records - piece.first - piece.count
            content = [begin, end - begin, piece.shard.bytes - end]
            lines.append([piece.shard.file, *content, piece.first, piece.count, left])
        return "\n".join(",".join(map(str, line)) for line in lines)
