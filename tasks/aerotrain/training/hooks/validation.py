"""Validation: the metrics of a split, measured in this process by a copy of the model."""

import math
from collections.abc import Callable
from pathlib import Path

import keras

from aerotrain.contract.training import TrainArguments
from aerotrain.data.dataset import Dataset
from aerotrain.training.checkpoints.checkpoints import SavedState
from aerotrain.training.context import TrainingContext
from aerotrain.training.hooks.hooks import Hook, TrainState, UserCallbacks
from aerotrain.training.hooks.local_methods import copy_variables
from aerotrain.training.input.batches import batch_spec, every_record
from aerotrain.training.input.record_files import RecordFiles
from aerotrain.training.input.shards import download, split_of
from aerotrain.training.internals import keras3
from aerotrain.training.model.callbacks import Callbacks
from aerotrain.training.model.checks import check_remainder
from aerotrain.training.model.code import UserCode
from aerotrain.training.steps.state import numbers

#: The split on which models are measured during training.
VALIDATION_SPLIT = "validation"


class Validation:
    """A copy of the model outside any strategy, and the batches of the split.

    Raises:
        FinalError: the data set has no such split, or it is empty.
    """

    def __init__(self, arguments: TrainArguments, dataset: Dataset, scratch: Path) -> None:
        split = split_of(dataset, VALIDATION_SPLIT)
        # Without class weights: in validation, every example has the same weight.
        code = UserCode.load(arguments.model, arguments.data)
        spec = batch_spec(dataset.schema, code.transform)
        self._model = code.build(arguments.all_hparams, spec, arguments.dtype_policy)
        check_remainder(self._model, arguments, VALIDATION_SPLIT, split.records)
        size = keras3.fixed_batch(self._model) or arguments.batch_size
        batches = every_record(
            RecordFiles.of(download(arguments.data, split.shards, scratch)),
            dataset.schema,
            code.transform,
            records=split.records,
            batch_size=size,
        )
        whole = split.records // size
        self._batches = batches.take(whole) if arguments.drop_remainder else batches

    def measure(
        self,
        update: Callable[[keras.Model], None],
        callbacks: Callbacks | None = None,
    ) -> dict[str, float]:
        """The metrics by name, after ``update`` has set the copy's weights.

        It is called after ``on_test_begin`` of the callbacks, which may change the trained model.
        """
        called = None
        if callbacks and callbacks.given:
            updating = keras.callbacks.LambdaCallback()
            updating.on_test_begin = lambda logs=None: update(self._model)
            called = callbacks.during_validation(updating)
        else:
            update(self._model)
        return numbers(
            self._model.evaluate(self._batches, callbacks=called, return_dict=True, verbose=0)
        )


class ValidationHook(Hook):
    """Adds the metrics of the validation split to those of each epoch, and finds the best model."""

    def __init__(self, context: TrainingContext, callbacks: UserCallbacks) -> None:
        self._trained = context.model
        self._callbacks = callbacks
        self._validation = Validation(
            context.arguments, context.pipeline.dataset, context.replica.scratch
        )
        #: The validation loss of the current weights, None if it was not measured, and the lowest.
        self._loss: float | None = None
        self._best = math.inf

    def on_start(self, state: TrainState, restored: SavedState) -> None:
        self._best = restored.about.get("best_val_loss") or math.inf

    def on_execution(self, state: TrainState) -> None:
        self._loss = None

    def on_epoch_end(self, state: TrainState) -> None:
        measured = self._validation.measure(
            lambda copy: copy_variables(self._trained, copy), self._callbacks.watched()
        )
        state.metrics |= {f"val_{name}": value for name, value in measured.items()}
        self._loss = state.metrics.get("val_loss", math.inf)
        state.is_best = self._loss < self._best
        self._best = min(self._loss, self._best)

    def to_save(self, state: TrainState) -> SavedState:
        best = None if math.isinf(self._best) else self._best
        return SavedState(about={"val_loss": self._loss, "best_val_loss": best})
