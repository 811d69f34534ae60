"""The metrics of a split, measured in this process while the job trains somewhere else."""

from collections.abc import Callable
from pathlib import Path

import keras

from aerotrain.contract.steps import TrainArguments
from aerotrain.dataset import Dataset
from aerotrain.training.input.batches import batch_spec, every_record
from aerotrain.training.input.shards import download, split_of
from aerotrain.training.model.code import UserCode
from aerotrain.training.steps.results import numbers

#: The split that models are measured on while they are trained.
VALIDATION_SPLIT = "validation"


class Validation:
    """A copy of the model that belongs to no strategy, and each record of the split once.

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
        """The metrics by name, once ``update`` has given the copy its weights."""
        update(self.model)
        return numbers(self.model.evaluate(self._batches, return_dict=True, verbose=0))


def weights_of(trained: keras.Model) -> Callable[[keras.Model], None]:
    """Gives a copy of ``trained`` the state that it has now, wherever that is kept."""

    def update(copy: keras.Model) -> None:
        for mine, theirs in zip(copy.variables, trained.variables, strict=True):
            mine.assign(theirs.numpy())

    return update
