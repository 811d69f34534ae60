"""Validation: the metrics of a split, measured in this process by a copy of the model."""

import json
import math
import shutil
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import keras

from aerotrain.contract.layout import EVALUATIONS, MODEL, TENSORBOARD_VALIDATION
from aerotrain.contract.training import TrainArguments
from aerotrain.data.dataset import VALIDATION_SPLIT, Dataset, load_dataset
from aerotrain.replica import Replica
from aerotrain.store import CorruptError, MissingError, Store, open_store
from aerotrain.training.background.writers import StatusWriter
from aerotrain.training.checkpoints.checkpoints import SavedState, checkpoint_store, restore_weights
from aerotrain.training.checkpoints.retention import Name, complete_checkpoints
from aerotrain.training.checkpoints.snapshot import random_state, restore_random_state
from aerotrain.training.context import TrainingContext
from aerotrain.training.hooks.hooks import Hook, TrainState, UserCallbacks, copy_variables
from aerotrain.training.hooks.report import EventFiles
from aerotrain.training.input.batches import RecordFiles, batch_spec, every_record
from aerotrain.training.input.shards import download, split_of
from aerotrain.training.internals import keras3
from aerotrain.training.model.callbacks import Callbacks
from aerotrain.training.model.checks import check_remainder
from aerotrain.training.model.code import UserCode
from aerotrain.training.model.error_messages import errors_translated
from aerotrain.training.steps.state import numbers

#: The most bytes of a split whose batches are kept, because to read few takes most of the time.
_KEPT_BYTES = 16 << 20


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
        before = random_state()  # of which new weights would draw
        self._model = code.build(arguments.all_hparams, spec, arguments.dtype_policy)
        restore_random_state(before)
        check_remainder(self._model, arguments, VALIDATION_SPLIT, split.records)
        size = keras3.fixed_batch(self._model) or arguments.batch_size
        files = RecordFiles.of(download(arguments.data, split.shards, scratch))
        batches = every_record(
            files,
            dataset.schema,
            code.transform,
            records=split.records,
            batch_size=size,
        )
        whole = split.records // size
        batches = batches.take(whole) if arguments.drop_remainder else batches
        self._batches = batches.cache() if files.bytes <= _KEPT_BYTES else batches

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
            called = keras.callbacks.CallbackList([*callbacks.list.callbacks, updating])
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
        state.is_best = self._callbacks.saves_best and self._loss < self._best
        self._best = min(self._loss, self._best)

    def to_save(self, state: TrainState) -> SavedState:
        best = None if math.isinf(self._best) else self._best
        return SavedState(about={"val_loss": self._loss, "best_val_loss": best})


_SECONDS_BETWEEN_LOOKS = 2.0


def follow(replica: Replica) -> None:
    """Evaluate every checkpoint of the job on the validation split, until training has ended.

    Raises:
        FinalError: there is no validation split, or a checkpoint is of another model.
    """
    arguments = TrainArguments.from_dict(replica.job.arguments)
    dataset = load_dataset(arguments.data)
    code = UserCode.load(arguments.model, arguments.data)
    store = open_store(replica.job.prefix)
    explaining = errors_translated(code, dataset, arguments.data, VALIDATION_SPLIT, replica.scratch)
    with explaining, StatusWriter.of(replica) as status_writer:
        status_writer.ready()
        validation = Validation(arguments, dataset, replica.scratch)
        events = EventFiles(replica.scratch / TENSORBOARD_VALIDATION)
        for name in checkpoints_to_come(store):
            _evaluate(store, name, validation, events, replica.scratch / "evaluated")


def _evaluate(
    store: Store, name: Name, validation: Validation, events: EventFiles, folder: Path
) -> None:
    """Evaluate the checkpoint of that name in ``store``, unless that is done or it was dropped."""
    key = f"{EVALUATIONS}/{name}.json"
    if store.exists(key):
        return
    try:
        metrics = validation.measure(
            lambda model: restore_weights(model, checkpoint_store(store, name), folder)
        )
    except (MissingError, CorruptError) as error:
        # Dropped before its turn, or damaged: the training does not use it either.
        print(f"the checkpoint of step {name.step} is not measured: {error}", flush=True)
        return
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    events.write(name.step, {f"epoch/{each}": metrics[each] for each in metrics})
    events.flush()
    for file in events.files():
        store.upload(file, f"{TENSORBOARD_VALIDATION}/{file.name}")
    # Last, because this object marks the evaluation as complete.
    document = {"step": name.step, "at": round(time.time(), 1), "metrics": metrics}
    store.put(key, json.dumps(document).encode())
    values = " ".join(f"{name}={value:.4f}" for name, value in metrics.items())
    print(f"the checkpoint of step {name.step}: {values}", flush=True)


def checkpoints_to_come(store: Store) -> Iterator[Name]:
    """The names of complete checkpoints as they appear, until a new model manifest appears.

    A manifest that exists at the start is an earlier attempt's, and is ignored.
    """
    before = _manifest(store)
    seen: set[Name] = set()
    ended = False
    while not ended:
        # Read before the list, so that the list contains the last checkpoint.
        ended = _manifest(store) != before
        for name in complete_checkpoints(store):
            if name not in seen:
                seen.add(name)
                yield name
        if not ended:
            time.sleep(_SECONDS_BETWEEN_LOOKS)


def _manifest(store: Store) -> bytes | None:
    try:
        return store.get(MODEL)
    except MissingError:
        return None
