"""The evaluator: a process that evaluates each checkpoint of a running training.

It is not part of the strategy and shares only the store with the other replicas. So it works under
any strategy, and no replica waits for it.
"""

import json
import shutil
import time
from collections.abc import Iterator
from pathlib import Path

from aerotrain.contract.layout import EVALUATIONS, MODEL, TENSORBOARD_VALIDATION
from aerotrain.contract.training import TrainArguments
from aerotrain.data.dataset import load_dataset
from aerotrain.replica import Replica
from aerotrain.store import CorruptError, MissingError, Store, open_store
from aerotrain.training.background.status_writer import StatusWriter
from aerotrain.training.checkpoints.checkpoints import checkpoint_store, restore_weights
from aerotrain.training.checkpoints.retention import Name, complete_checkpoints
from aerotrain.training.error_messages import errors_translated
from aerotrain.training.hooks.report import EventFiles
from aerotrain.training.hooks.validation import VALIDATION_SPLIT, Validation
from aerotrain.training.model.code import UserCode

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
        evaluator = Evaluator(store, validation, replica.scratch)
        for name in checkpoints_to_come(store):
            evaluator.measure(name)


class Evaluator:
    """Evaluates checkpoints of the training in ``store``, and writes the results there."""

    def __init__(self, store: Store, validation: Validation, scratch: Path) -> None:
        self._store = store
        self._validation = validation
        self._folder = scratch / "evaluated"
        self._events = EventFiles(scratch / TENSORBOARD_VALIDATION)

    def measure(self, name: Name) -> None:
        """Evaluate the checkpoint of that name, unless that is done or it was dropped."""
        key = f"{EVALUATIONS}/{name}.json"
        if self._store.exists(key):
            return
        try:
            metrics = self._validation.measure(
                lambda model: restore_weights(
                    model, checkpoint_store(self._store, name), self._folder
                )
            )
        except MissingError:
            print(f"the checkpoint of step {name.step} was dropped before its turn", flush=True)
            return
        except CorruptError as error:
            # Dropped while it was fetched, or damaged: the training does not use it either.
            print(f"the checkpoint of step {name.step} is not measured: {error}", flush=True)
            return
        finally:
            shutil.rmtree(self._folder, ignore_errors=True)
        self._events.write(name.step, {f"epoch/{each}": metrics[each] for each in metrics})
        self._events.flush()
        for file in self._events.files():
            self._store.upload(file, f"{TENSORBOARD_VALIDATION}/{file.name}")
        # Last, because this object marks the evaluation as complete.
        document = {"step": name.step, "at": round(time.time(), 1), "metrics": metrics}
        self._store.put(key, json.dumps(document).encode())
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
