"""The input pipeline: the batches of the training steps."""

import math
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from functools import cached_property
from io import BytesIO
from itertools import count, islice
from pathlib import Path
from typing import Any

import tensorflow as tf

from aerotrain.contract.errors import FinalError
from aerotrain.contract.job import Job
from aerotrain.contract.replicas import Role
from aerotrain.contract.training import TrainArguments
from aerotrain.data.dataset import TRAIN_SPLIT, Dataset, Split
from aerotrain.replica import Replica
from aerotrain.store import open_store
from aerotrain.training.input.batches import (
    MicrobatchSpec,
    batch_spec,
    in_parts,
    layout_of,
    mapped,
    ready,
    transformed,
    untuned,
)
from aerotrain.training.input.data_workers import ROWS, DataWorkers
from aerotrain.training.input.leases import Lease, LeaseBook, Part, in_batches
from aerotrain.training.input.order import Order, Schedule
from aerotrain.training.input.shard_cache import ShardCache
from aerotrain.training.input.shards import split_of
from aerotrain.training.input.shuffle_windows import (
    batches_of,
    leased_windows,
    leases_of,
    rows_of,
    windows_from,
)
from aerotrain.training.model.code import UserCode

#: The most records of a sample, and the bytes that are read for those that are longer than others.
_SAMPLE, _SAMPLE_BYTES = 64, 1 << 20

#: The least number of calls that a data worker gets at once of one reader: also processes on few
#: cores have those of the machine that nobody else needs.
_CALLS = 4


def check_shards(job: Job, arguments: TrainArguments, dataset: Dataset) -> None:
    """Check that the replicas of ``job`` can read the shards.

    Raises:
        FinalError: the split is empty, or the shard cache is too small.
    """
    Order.of(arguments, split_of(dataset, TRAIN_SPLIT).shards, leased=job.rules.ps > 0)


def data_workers_of(replica: Replica) -> DataWorkers | None:
    """The data workers that a replica calls, if its job has any."""
    if not replica.job.count(Role.INPUT):
        return None
    addresses = replica.cluster[Role.INPUT]
    cores = replica.job.replica(Role.INPUT).resources.cpu
    calls = len(addresses) * max(_CALLS, 2 * math.ceil(cores))
    batch_size = TrainArguments.from_dict(replica.job.arguments).batch_size
    return DataWorkers(addresses, batch_size, calls)


@dataclass(frozen=True, kw_only=True)
class InputPipeline:
    """The data set of a job, the user's code that reads it, and the folder for shards."""

    job: Job
    arguments: TrainArguments
    dataset: Dataset
    code: UserCode
    scratch: Path
    data_workers: DataWorkers | None = None
    _caches: list[ShardCache] = field(default_factory=list, init=False)

    def __post_init__(self) -> None:
        if not self.schedule.steps_per_epoch:
            raise FinalError(
                f"drop_remainder leaves no batch: batch_size is {self.arguments.batch_size}, and "
                f"the split {TRAIN_SPLIT!r} has {self.split.records} records; use smaller batches"
            )

    @cached_property
    def split(self) -> Split:
        """The split that is trained on."""
        return split_of(self.dataset, TRAIN_SPLIT)

    @cached_property
    def schedule(self) -> Schedule:
        """The number of steps, and the ends of epochs."""
        return Schedule(
            records=self.split.records,
            batch_size=self.arguments.batch_size,
            epochs=self.arguments.epochs,
            drop_remainder=self.arguments.drop_remainder,
        )

    @cached_property
    def spec(self) -> Any:
        """The element spec of the batches."""
        return batch_spec(self.dataset.schema, self.code.transform)

    @contextmanager
    def caching_shards(self) -> Iterator[None]:
        """A scope in which shards are downloaded. If a download fails, its error is raised."""
        try:
            yield
        except tf.errors.OpError as error:
            for cache in self._caches:
                if cache.failure is not None:
                    raise cache.failure from error
            raise
        finally:
            while self._caches:
                self._caches.pop().stop()

    def sample(self) -> Any | None:
        """The first records as one batch of the batch size or less; None if it has only one."""
        # Here, because it imports PyArrow: 40 MB that no other part of a training needs.
        from aerotrain.data.records.framing import FramingError, read_frames

        shard, store = self.split.shards[0], open_store(self.arguments.data)
        most = min(_SAMPLE, self.arguments.batch_size, shard.records)
        end = shard.bytes * most // shard.records + _SAMPLE_BYTES
        content = BytesIO(store.get_range(shard.file, 0, end, store.stat(shard.file).etag))
        records: list[bytes] = []
        with suppress(FramingError):  # of a record that is cut off
            records.extend(record for _, record in islice(read_frames(content), most))
        if len(records) < 2:
            return None
        batch = tf.data.Dataset.from_tensors(tf.constant(records))
        schema, transform = self.dataset.schema, self.code.transform
        return untuned(ready(batch, schema, transform)).get_single_element()

    def is_short(self) -> bool:
        """Whether shards are missing because the store is unavailable or the disk is full."""
        return any(cache.is_waiting for cache in self._caches)

    def local(self, step: int) -> tf.data.Dataset:
        """The batches that follow ``step`` steps, read on this machine or by data workers."""
        return self._ready(step)

    def in_microbatches(self, step: int) -> Callable[[tf.distribute.InputContext], tf.data.Dataset]:
        """The same batches, of which each replica gets its own microbatches."""

        def pieces(context: tf.distribute.InputContext) -> tf.data.Dataset:
            replicas = context.num_replicas_in_sync
            local = replicas // context.num_input_pipelines
            cut = MicrobatchSpec(
                accumulate=self.arguments.gradient_accumulation_steps,
                replicas=replicas,
                first=context.input_pipeline_id * local,
                local=local,
            )
            return self._ready(step, cut)

        return pieces

    def book(self, step: int, position: Mapping[str, Any] | None) -> LeaseBook:
        """The leases from that position on, or those that follow the first ``step`` steps."""
        if position is None:
            epoch, done = self.schedule.position(step)
            position = {"epoch": epoch, "left": [[done, self.schedule.steps_per_epoch]]}
        order = Order.of(self.arguments, self.split.shards, leased=True)
        return LeaseBook(order, position, drop_remainder=self.arguments.drop_remainder)

    def rows(self, lease: Lease) -> list[list[int]]:
        """What is sent to a worker for a lease."""
        if self.data_workers is None:
            return lease.rows()
        return lease.rows_of_batches(self.arguments.batch_size)

    def leased(self, queue: str) -> tf.data.Dataset:
        """For the worker that runs this: the batches of the leases that it gets by ``queue``.

        An element is the number of a lease, and a batch. If gradients are accumulated, each is cut
        into as many microbatches.
        """
        pieces = self.arguments.gradient_accumulation_steps
        cut = MicrobatchSpec(accumulate=pieces) if pieces > 1 else None
        if self.data_workers is not None:
            return self._in_pieces(rows_of(queue), cut)
        # The worker's shard cache is below its working directory.
        windows = leased_windows("", self._width, leases_of(queue))
        return self._in_pieces(batches_of(windows, self.arguments.batch_size), cut)

    def parts(self, queue: str, parts: int) -> tf.data.Dataset:
        """The same of parts of batches: the number, the weight of the part, and its records.

        Of ``parts`` parts of a batch, it is the one whose number is the remainder of the number of
        the lease.
        """
        cut = MicrobatchSpec(accumulate=parts)
        windows = leased_windows("", self._width, leases_of(queue))
        batches = batches_of(windows, self.arguments.batch_size)
        return in_parts(batches, self.dataset.schema, self.code.transform, cut)

    @property
    def _width(self) -> int | None:
        rows = layout_of(self.dataset.schema, self.split.shards)
        return rows.width if rows else None

    def _ready(self, step: int, cut: MicrobatchSpec | None = None) -> tf.data.Dataset:
        """Batches for the steps that follow ``step``, or with ``cut`` microbatches."""
        batches = self._batches(step) if self.data_workers is None else self._rows(step)
        return self._in_pieces(batches, cut)

    def _in_pieces(self, batches: tf.data.Dataset, cut: MicrobatchSpec | None) -> tf.data.Dataset:
        if self.data_workers is None:
            return mapped(batches, transformed(self.dataset.schema, self.code.transform, cut), cut)
        brought = self.data_workers.bring(self.spec, cut)
        return mapped(batches, brought, cut, self.data_workers.calls)

    def _rows(self, step: int) -> tf.data.Dataset:
        """What data workers are called with for each batch."""
        begin, done = self.schedule.position(step)
        order, most = Order.of(self.arguments, self.split.shards), self.schedule.steps_per_epoch

        def batches() -> Iterator[list[tuple[int, int, int]]]:
            for epoch in count(begin):
                windows = (Part(each.number, 0, each.records) for each in order.epoch(epoch))
                cut = in_batches(windows, self.arguments.batch_size)
                for parts in islice(cut, done if epoch == begin else 0, most):
                    yield [(each.window, each.drop, each.records) for each in parts]

        return tf.data.Dataset.from_generator(batches, output_signature=ROWS)

    def _batches(self, step: int) -> tf.data.Dataset:
        epoch, done = self.schedule.position(step)
        order = Order.of(self.arguments, self.split.shards)
        begin = (epoch, done * self.schedule.batch_size)
        cache = ShardCache.of(self.arguments, self.dataset, order, self.scratch, begin=begin)
        cache.start()
        self._caches.append(cache)
        return batches_of(
            windows_from(f"{self.scratch}/", self._width),
            self.arguments.batch_size,
            drop_remainder=self.arguments.drop_remainder,
        )
