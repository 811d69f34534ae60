"""What the training steps are fed with."""

from dataclasses import dataclass
from pathlib import Path

import tensorflow as tf

from aerotrain.contract.job import Job
from aerotrain.contract.steps import TrainArguments
from aerotrain.dataset import Dataset, Split
from aerotrain.training.code import UserCode
from aerotrain.training.input import epochs, own_shards, shuffle_buffer
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
        files = download(self.arguments.data, share(self._split.shards, 0, 1), self.scratch)
        return epochs(
            files,
            self.dataset.schema,
            self.code.transform,
            batch_size=self.arguments.batch_size,
            buffer=self._buffer,
            seed=self.arguments.seed,
            start=self.plan.position(step),
        )

    def remote(self) -> tf.data.Dataset:
        """The batches of whichever worker runs it, from the shards that are that worker's."""
        return own_shards(
            self.dataset.schema,
            self.code.transform,
            batch_size=self.arguments.batch_size,
            buffer=self._buffer,
            seed=self.arguments.seed,
        )

    @property
    def _split(self) -> Split:
        return split_of(self.dataset, TRAIN_SPLIT)

    @property
    def _buffer(self) -> int:
        size = sum(shard.bytes for shard in self._split.shards)
        return shuffle_buffer(self._split.records, size)
