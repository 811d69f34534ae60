"""What a checkpoint keeps in addition to variables, so that a resumed training is the same.

This is the state of Python's and NumPy's random numbers, which callbacks may use, and the metric
sums of an unfinished epoch.
"""

import io
import json
import random
from collections.abc import Mapping, Sequence
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from aerotrain.training.model.callbacks import Files
from aerotrain.training.steps.metric_state import MetricValues
from aerotrain.training.steps.step import inner

_RANDOM = "random.json"
_SUMS = "sums.npz"


def optimizer_state(model: keras.Model) -> dict[str, Any]:
    """The optimizer and its schedule, for readers of a manifest; its state is in the checkpoint."""
    optimizer = inner(model.optimizer)
    if optimizer is None:
        return {}
    try:
        schedule = optimizer.get_config().get("learning_rate")
        # A strategy's variable is not a number, but TensorFlow converts it to a tensor.
        rate = float(tf.convert_to_tensor(optimizer.learning_rate))
        json.dumps(schedule)
    except (AttributeError, NotImplementedError, TypeError, ValueError):
        schedule = rate = None  # an optimizer of the user's own, without a usable config
    return {"optimizer": type(optimizer).__name__, "learning_rate": rate, "schedule": schedule}


def random_state() -> Files:
    """The state of the process's random numbers, as a file."""
    version, numbers, gauss = random.getstate()
    kind, key, *position = np.random.get_state(legacy=True)
    state = {
        "python": [version, list(numbers), gauss],
        "numpy": [kind, [int(each) for each in key], *position],
    }
    return {_RANDOM: json.dumps(state).encode()}


def restore_random(files: Files) -> None:
    """Continue the random numbers from the state of ``random_state``."""
    if _RANDOM not in files:
        return
    state: Mapping[str, Any] = json.loads(files[_RANDOM])
    version, numbers, gauss = state["python"]
    random.setstate((version, tuple(numbers), gauss))
    kind, key, *position = state["numpy"]
    np.random.set_state((kind, np.array(key, np.uint32), *position))


def sums_as_file(sums: MetricValues | None) -> Files:
    """The sums of the epoch so far, as a file; no file between two epochs."""
    if sums is None:
        return {}
    content = io.BytesIO()
    np.savez(content, *(np.asarray(each) for each in sums))
    return {_SUMS: content.getvalue()}


def sums_of(files: Files, zero: Sequence[Any]) -> list[Any] | None:
    """The sums that ``sums_as_file`` saved, if they fit the metrics of ``zero``."""
    if _SUMS not in files:
        return None
    with np.load(io.BytesIO(files[_SUMS])) as arrays:
        sums = [arrays[f"arr_{index}"] for index in range(len(arrays.files))]
    if [each.shape for each in sums] != [np.shape(each) for each in zero]:
        print("the metrics are others than those of the checkpoint: the epoch's begin anew")
        return None
    return [each.astype(np.asarray(old).dtype) for each, old in zip(sums, zero, strict=True)]
