"""Validation: the metrics of a split, measured in this process by a copy of the model."""

from collections.abc import Callable
from pathlib import Path

import keras

from aerotrain.contract.steps import TrainArguments
from aerotrain.data.dataset import Dataset
from aerotrain.training.input.batches import batch_spec, every_record
from aerotrain.training.input.shards import download, split_of
from aerotrain.training.model.code import UserCode
from aerotrain.training.steps.metric_state import numbers

#: The split on which models are measured during training.
VALIDATION_SPLIT = "validation"


class Validation:
    """A copy of the model outside any strategy, and the batches of the split.

    Raises:
        FinalError: the data set has no such split, or it is empty.
    """

    def __init__(
        self, arguments: TrainArguments, dataset: Dataset, code: UserCode, scratch: Path
    ) -> None:
        split = split_of(dataset, VALIDATION_SPLIT)
        spec = batch_spec(dataset.schema, code.transform)
        self.model = code.build(arguments.all_hparams, spec, arguments.dtype_policy)
        self._batches = every_record(
            download(arguments.data, split.shards, scratch),
            dataset.schema,
            code.transform,
            records=split.records,
            batch_size=arguments.batch_size,
        )

    def measure(self, update: Callable[[keras.Model], None]) -> dict[str, float]:
        """The metrics by name, after ``update`` has set the copy's weights."""
        update(self.model)
        return numbers(self.model.evaluate(self._batches, return_dict=True, verbose=0))


def weights_of(trained: keras.Model) -> Callable[[keras.Model], None]:
    """A function that copies the current state of ``trained`` into a copy."""

    def update(copy: keras.Model) -> None:
        for mine, theirs in zip(copy.variables, trained.variables, strict=True):
            mine.assign(theirs.numpy())

    return update
