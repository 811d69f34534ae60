"""The input pipeline: the batches of the training steps."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import tensorflow as tf

from aerotrain.contract.job import Job
from aerotrain.contract.steps import TrainArguments
from aerotrain.data.dataset import Dataset
from aerotrain.training.input.batches import MicrobatchSpec, batch_spec, in_microbatches, ready
from aerotrain.training.input.rows import layout_of
from aerotrain.training.input.service import Service
from aerotrain.training.input.shard_cache import ShardCache, order_of, shard_cache_of
from aerotrain.training.input.shards import TRAIN_SPLIT, share, split_of
from aerotrain.training.input.shuffle_windows import batches_of, supplied
from aerotrain.training.model.code import UserCode
from aerotrain.training.schedule import Plan


@dataclass(frozen=True, kw_only=True)
class InputPipeline:
    """The data set of a job, the user's code that reads it, and the folder for shards.

    Raises:
        FinalError: a shard does not fit into the job's shard cache.
    """

    job: Job
    arguments: TrainArguments
    dataset: Dataset
    code: UserCode
    plan: Plan
    scratch: Path
    service: Service | None = None
    _supplies: list[ShardCache] = field(default_factory=list, init=False)

    def __post_init__(self) -> None:
        order_of(self.arguments, split_of(self.dataset, TRAIN_SPLIT).shards)

    @property
    def spec(self) -> Any:
        """The element spec of the batches."""
        return batch_spec(self.dataset.schema, self.code.transform)

    @contextmanager
    def supplied(self) -> Iterator[None]:
        """A scope in which shards are downloaded. If a download fails, its error is raised."""
        try:
            yield
        except tf.errors.OpError as error:
            for cache in self._supplies:
                if cache.failure is not None:
                    raise cache.failure from error
            raise
        finally:
            while self._supplies:
                self._supplies.pop().stop()

    def is_short(self) -> bool:
        """Whether shards are missing because the store is unavailable or the disk is full."""
        return any(cache.is_held for cache in self._supplies)

    def local(self, step: int) -> tf.data.Dataset:
        """The batches that follow ``step`` steps, from every shard, downloaded to this machine.

        With input replicas, the batches are theirs, in any order.
        """
        if self.service is not None:
            return self.remote(step)
        return ready(self._batches(step), self.dataset.schema, self.code.transform)

    def in_microbatches(self, step: int) -> Callable[[tf.distribute.InputContext], tf.data.Dataset]:
        """The same batches, of which each replica gets its own microbatches."""

        def pieces(context: tf.distribute.InputContext) -> tf.data.Dataset:
            replicas = context.num_replicas_in_sync
            if self.service is not None:
                return self._remote_microbatches(step, replicas)
            local = replicas // context.num_input_pipelines
            cut = MicrobatchSpec(
                accumulate=self.arguments.gradient_accumulation_steps,
                replicas=replicas,
                first=context.input_pipeline_id * local,
                local=local,
            )
            return in_microbatches(
                self._batches(step), self.dataset.schema, self.code.transform, cut
            )

        return pieces

    def _batches(self, step: int) -> tf.data.Dataset:
        shards = share(split_of(self.dataset, TRAIN_SPLIT).shards, 0, 1)
        epoch, done = self.plan.position(step)
        done *= self.plan.batch_size
        cache = shard_cache_of(
            self.arguments, self.dataset, shards, self.scratch, begin=(epoch, done)
        )
        cache.start()
        self._supplies.append(cache)
        return self._read(f"{self.scratch}/")

    def remote(self, step: int) -> tf.data.Dataset:
        """The batches of the worker that runs this, from its own shards.

        They start near the position of the readers after ``step`` steps, if all have read equally
        fast.
        """
        return self._brought(
            lambda: ready(self._read_own(step), self.dataset.schema, self.code.transform)
        )

    def remote_in_microbatches(self, step: int) -> tf.data.Dataset:
        """The same batches, each in as many microbatches as gradients are accumulated over."""
        return self._remote_microbatches(step, 1)

    def _remote_microbatches(self, step: int, replicas: int) -> tf.data.Dataset:
        """Microbatches for any of ``replicas``; all are equal, because all batches are full."""
        cut = MicrobatchSpec(
            accumulate=self.arguments.gradient_accumulation_steps, replicas=replicas, local=replicas
        )
        return self._brought(
            lambda: in_microbatches(
                self._read_own(step), self.dataset.schema, self.code.transform, cut
            )
        )

    def _brought(self, make: Callable[[], tf.data.Dataset]) -> tf.data.Dataset:
        """The data set that ``make`` returns, read in this process or in the input replicas."""
        return make() if self.service is None else self.service.bring(make)

    def _read_own(self, step: int) -> tf.data.Dataset:
        readers = max(1, self.job.count(self.job.reader))
        own = share(split_of(self.dataset, TRAIN_SPLIT).shards, 0, readers)
        read = step * self.arguments.batch_size // readers
        return self._read("", order_of(self.arguments, own).window_of(read))

    def _read(self, root: str, first: int = 0) -> tf.data.Dataset:
        rows = layout_of(self.dataset.schema, split_of(self.dataset, TRAIN_SPLIT).shards)
        windows = supplied(root, rows.width if rows else None, first)
        return batches_of(windows, self.arguments.batch_size)
