"""The input pipeline: the batches of the training steps."""

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from functools import cached_property
from io import BytesIO
from itertools import islice
from pathlib import Path
from typing import Any, Self

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
    in_microbatches,
    in_parts,
    layout_of,
    ready,
    untuned,
)
from aerotrain.training.input.leases import LeaseBook
from aerotrain.training.input.order import Order, Schedule
from aerotrain.training.input.shard_cache import ShardCache
from aerotrain.training.input.shards import share, split_of
from aerotrain.training.input.shuffle_windows import (
    batches_of,
    leased_windows,
    leases_of,
    numbers_of,
    windows_from,
)
from aerotrain.training.model.code import UserCode

#: The most records of a sample, and the bytes that are read for those that are longer than others.
_SAMPLE, _SAMPLE_BYTES = 64, 1 << 20


def check_shards(job: Job, arguments: TrainArguments, dataset: Dataset) -> None:
    """Check that the replicas of ``job`` can read the shards.

    Raises:
        FinalError: there are fewer shards than input replicas, or the shard cache is too small.
    """
    shards = split_of(dataset, TRAIN_SPLIT).shards
    Order.of(arguments, shards, leased=job.rules.ps > 0)
    share(shards, 0, max(1, job.count(Role.INPUT)))


@dataclass(frozen=True)
class Service:
    """Input by other replicas, if reading is the bottleneck: TensorFlow's tf.data service.

    Each ``input`` replica reads, parses and transforms the records of its own shards repeatedly,
    and the training replicas take whatever batch is ready. So the order of batches no longer
    follows the seed. The service detects which input replicas are available; while one is missing,
    the others continue, and a restarted one begins where the training began. See
    https://www.tensorflow.org/api_docs/python/tf/data/experimental/service

    ``address`` is the dispatcher's; readers with one ``name`` share batches.
    """

    address: str
    name: str

    @classmethod
    def of(cls, replica: Replica) -> Self | None:
        """The service of the replica's job, if the job has input replicas."""
        if not replica.job.count(Role.INPUT):
            return None
        [address] = replica.cluster[Role.DISPATCHER]
        return cls(address, replica.attempt)

    def read(self, make: Callable[[], tf.data.Dataset]) -> tf.data.Dataset:
        """The batches that ``make`` reads in each ``input`` replica, without end and in any order.

        It may be called while a function is traced; ``make`` is called outside of it.
        """
        url = f"grpc://{self.address}"
        with tf.init_scope():
            made = make()
            registered = tf.data.experimental.service.register_dataset(
                url, made, compression=None, dataset_id=self.name
            )
            number = registered.numpy()
        brought = tf.data.experimental.service.from_dataset_id(
            tf.data.experimental.service.ShardingPolicy.OFF,
            url,
            number,
            element_spec=made.element_spec,
            job_name=self.name,
        )
        endless = tf.data.experimental.assert_cardinality(tf.data.INFINITE_CARDINALITY)
        return brought.apply(endless)


@dataclass(frozen=True, kw_only=True)
class InputPipeline:
    """The data set of a job, the user's code that reads it, and the folder for shards."""

    job: Job
    arguments: TrainArguments
    dataset: Dataset
    code: UserCode
    scratch: Path
    service: Service | None = None
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
            # Input replicas repeat their own shards without end.
            full_batches=self.service is not None,
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
        """The batches that follow ``step`` steps, from every shard, downloaded to this machine.

        With input replicas, the batches are theirs, in any order.
        """
        return self._ready(step)

    def in_microbatches(self, step: int) -> Callable[[tf.distribute.InputContext], tf.data.Dataset]:
        """The same batches, of which each replica gets its own microbatches."""

        def pieces(context: tf.distribute.InputContext) -> tf.data.Dataset:
            replicas = context.num_replicas_in_sync
            # Microbatches of input replicas are for any of the replicas.
            inputs = 1 if self.service is not None else context.num_input_pipelines
            local = replicas // inputs
            cut = MicrobatchSpec(
                accumulate=self.arguments.gradient_accumulation_steps,
                replicas=replicas,
                first=context.input_pipeline_id % inputs * local,
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

    def leased(self, queue: str, step: int) -> tf.data.Dataset:
        """For the worker that runs this: the batches of the leases that it gets by ``queue``.

        An element is the number of a lease, and a batch. If gradients are accumulated, each is cut
        into as many microbatches. With input replicas, a lease is of any of the batches that follow
        ``step`` steps.
        """
        pieces, leases = self.arguments.gradient_accumulation_steps, leases_of(queue)
        cut = MicrobatchSpec(accumulate=pieces) if pieces > 1 else None
        if self.service is not None:
            return tf.data.Dataset.zip((numbers_of(leases), self._ready(step, cut)))
        # The worker's shard cache is below its working directory.
        windows = leased_windows("", self._width, leases)
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
        """Batches for the steps, read in this process or in the input replicas.

        With ``cut``, they are microbatches.
        """

        def make() -> tf.data.Dataset:
            return self._in_pieces(self._batches(step), cut)

        return make() if self.service is None else self.service.read(make)

    def _in_pieces(self, batches: tf.data.Dataset, cut: MicrobatchSpec | None) -> tf.data.Dataset:
        schema, transform = self.dataset.schema, self.code.transform
        if cut is None:
            return ready(batches, schema, transform)
        return in_microbatches(batches, schema, transform, cut)

    def _batches(self, step: int) -> tf.data.Dataset:
        shards, root, first = self.split.shards, f"{self.scratch}/", 0
        if self.service is not None:
            # An input replica's shard cache begins with window 0, below its working directory.
            readers = self.job.count(Role.INPUT)
            read = step * self.arguments.batch_size // readers
            order = Order.of(self.arguments, share(shards, 0, readers))
            root, first = "", order.window_of(read)
        else:
            epoch, done = self.schedule.position(step)
            begin = (epoch, done * self.schedule.batch_size)
            order = Order.of(self.arguments, shards)
            cache = ShardCache.of(self.arguments, self.dataset, order, self.scratch, begin=begin)
            cache.start()
            self._caches.append(cache)
        return batches_of(
            windows_from(root, self._width, first),
            self.arguments.batch_size,
            drop_remainder=self.arguments.drop_remainder,
        )
