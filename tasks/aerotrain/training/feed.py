"""What the training steps are fed with."""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import tensorflow as tf

from aerotrain.contract.job import Job
from aerotrain.contract.steps import TrainArguments
from aerotrain.dataset import Dataset, Split
from aerotrain.training.code import UserCode
from aerotrain.training.input import Cut, epochs, in_pieces, own_shards, ready, shuffle_buffer
from aerotrain.training.plan import Plan
from aerotrain.training.shards import TRAIN_SPLIT, download, share, split_of


@dataclass(frozen=True, kw_only=True)
class Feed:
    """The data set of a job, the user's code that reads it, and where shards may be kept."""

    job: Job
    arguments: TrainArguments
    dataset: Dataset
    code: UserCode
    plan: Plan
    scratch: Path

    def local(self, step: int) -> tf.data.Dataset:
        """The batches that follow ``step`` steps, from every shard, brought to this machine."""
        return ready(self._batches(step), self.dataset.schema, self.code.transform)

    def in_pieces(self, step: int) -> Callable[[tf.distribute.InputContext], tf.data.Dataset]:
        """The same batches, of which each replica gets pieces of its own."""

        def pieces(context: tf.distribute.InputContext) -> tf.data.Dataset:
            local = context.num_replicas_in_sync // context.num_input_pipelines
            cut = Cut(
                accumulate=self.arguments.accumulate_steps,
                replicas=context.num_replicas_in_sync,
                first=context.input_pipeline_id * local,
                local=local,
            )
            return in_pieces(self._batches(step), self.dataset.schema, self.code.transform, cut)

        return pieces

    def _batches(self, step: int) -> tf.data.Dataset:
        files = download(self.arguments.data, share(self._split.shards, 0, 1), self.scratch)
        return epochs(
            files,
            batch_size=self.arguments.batch_size,
            buffer=self._buffer,
            seed=self.arguments.seed,
            start=self.plan.position(step),
        )

    def remote(self) -> tf.data.Dataset:
        """The batches of whichever worker runs it, from the shards that are that worker's."""
        return ready(self._own(), self.dataset.schema, self.code.transform)

    def remote_in_pieces(self) -> tf.data.Dataset:
        """The same batches, each in as many pieces as gradients are accumulated over."""
        cut = Cut(accumulate=self.arguments.accumulate_steps)
        return in_pieces(self._own(), self.dataset.schema, self.code.transform, cut)

    def _own(self) -> tf.data.Dataset:
        return own_shards(
            batch_size=self.arguments.batch_size, buffer=self._buffer, seed=self.arguments.seed
        )

    @property
    def _split(self) -> Split:
        return split_of(self.dataset, TRAIN_SPLIT)

    @property
    def _buffer(self) -> int:
        size = sum(shard.bytes for shard in self._split.shards)
        return shuffle_buffer(self._split.records, size)
