"""The values in memory of everything that a checkpoint holds.

These are the variables, the state of Python's and NumPy's random numbers, which callbacks may use,
and the metric state of an unfinished epoch. Training does not wait until they are on the disk, as
with TensorFlow's own saving. A variable of a CPU is not even copied: the snapshot shares its
buffer, and TensorFlow copies on write when the next step updates the variable. That holds on other
machines too: their values are fetched while training continues. A variable of a GPU is copied to
its machine's CPU.
"""

import errno
import io
import json
import random
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import keras
import numpy as np
import tensorflow as tf
from numpy.typing import NDArray

from aerotrain.training.internals import tensorflow2
from aerotrain.training.model.callbacks import Files
from aerotrain.training.steps.state import MetricValues

_RANDOM = "random.json"
_METRIC_STATE = "sums.npz"

#: So many values are fetched from other machines at once.
_FETCHED_AT_ONCE = 8


@dataclass
class Snapshot:
    """The values of a ``tf.train.Checkpoint``'s variables, by TensorFlow's names for them.

    A value that is not on this machine yet is a function that fetches it.
    """

    names: list[str]
    slices: list[str]
    values: list[Any]
    owners: list[Any]

    @classmethod
    def of(
        cls,
        checkpoint: tf.train.Checkpoint,
        later: Callable[[tf.Tensor], Any] | None = None,
        *,
        remote: bool = False,
    ) -> "Snapshot":
        """Read every variable of ``checkpoint``.

        ``later`` returns the function that fetches the value of a tensor. Without it, all values
        are on this machine. ``remote`` is whether variables are on other machines.
        """
        names, slices, read, owners = [], [], [], []
        for owner, tensors in tensorflow2.serialized_tensors(checkpoint).items():
            for name, each in tensors.items():
                # A sliced variable has one tensor per slice.
                for part, value in (each if isinstance(each, dict) else {"": each}).items():
                    names.append(name)
                    slices.append(part.strip())
                    read.append(value)
                    owners.append(getattr(owner, "obj", owner))
        known = _remote_values(owners) if remote else {}
        values = [known.get(at) or _tensor(each, later) for at, each in enumerate(read)]
        return cls(names, slices, values, owners)

    def fetch(self) -> None:
        """Bring all values here.

        Raises:
            tf.errors.OpError: another machine was lost.
        """
        with ThreadPoolExecutor(_FETCHED_AT_ONCE) as pool:
            self.values = list(
                pool.map(lambda each: each() if callable(each) else each, self.values)
            )

    def write(self, prefix: Path, device: str | None) -> None:
        """Write the values as the checkpoint ``prefix``, by ``device`` of this machine.

        The files are read by ``tf.train.Checkpoint.read``.

        Raises:
            OSError: the disk is full.
        """
        prefix.parent.mkdir(parents=True, exist_ok=True)
        try:
            with tf.device(device or "/device:CPU:0"):
                tf.raw_ops.SaveV2(
                    prefix=str(prefix),
                    tensor_names=self.names,
                    shape_and_slices=self.slices,
                    tensors=[tf.constant(each) for each in self.values],
                )
        except tf.errors.ResourceExhaustedError as error:
            raise OSError(errno.ENOSPC, "no room for a checkpoint", str(prefix)) from error


def _remote_values(owners: Sequence[Any]) -> dict[int, Callable[[], NDArray[Any]]]:
    """The functions that fetch the values of those of ``owners`` that are variables, by place.

    Their machines keep the values of now, each without a copy until the variable is updated.
    """
    groups: dict[str, dict[int, tf.Variable]] = {}
    for place, owner in enumerate(owners):
        variable = owner.value if isinstance(owner, keras.Variable) else owner
        if isinstance(variable, tf.Variable):
            groups.setdefault(variable.device, {})[place] = variable
    values: dict[int, Callable[[], NDArray[Any]]] = {}
    for group in groups.values():
        read = tensorflow2.read_at_once([*group.values()])
        values |= zip(group, (each.numpy for each in read), strict=True)
    return values


def _tensor(given: Any, later: Callable[[tf.Tensor], Any] | None) -> Any:
    """A tensor, or that which a callable reads; or what fetches its value ``later``."""
    given = getattr(given, "tensor", given)
    tensor = given() if callable(given) else given
    if isinstance(tensor, tf.Variable):  # as Keras gives those of a strategy with replicas
        tensor = tensor.read_value()
    return later(tensor) if later else tensor


def random_state() -> Files:
    """The state of the process's random numbers, as a file."""
    version, numbers, gauss = random.getstate()
    kind, key, *position = np.random.get_state(legacy=True)
    state = {
        "python": [version, list(numbers), gauss],
        "numpy": [kind, [int(each) for each in key], *position],
    }
    return {_RANDOM: json.dumps(state).encode()}


def restore_random_state(files: Files) -> None:
    """Continue the random numbers from the state of ``random_state``."""
    if _RANDOM not in files:
        return
    state: Mapping[str, Any] = json.loads(files[_RANDOM])
    version, numbers, gauss = state["python"]
    random.setstate((version, tuple(numbers), gauss))
    kind, key, *position = state["numpy"]
    np.random.set_state((kind, np.array(key, np.uint32), *position))


def metric_state_to_file(sums: MetricValues | None) -> Files:
    """The metric state of the epoch so far, as a file; no file between two epochs."""
    if sums is None:
        return {}
    content = io.BytesIO()
    np.savez(content, *(np.asarray(each) for each in sums))
    return {_METRIC_STATE: content.getvalue()}


def metric_state_of(files: Files, zero: Sequence[Any]) -> list[Any] | None:
    """The metric state that ``metric_state_to_file`` saved, if they fit the metrics of ``zero``."""
    if _METRIC_STATE not in files:
        return None
    with np.load(io.BytesIO(files[_METRIC_STATE])) as arrays:
        sums = [arrays[f"arr_{index}"] for index in range(len(arrays.files))]
    if [each.shape for each in sums] != [np.shape(each) for each in zero]:
        print("the metrics are not those of the checkpoint; those of this epoch begin at zero")
        return None
    return [each.astype(np.asarray(old).dtype) for each, old in zip(sums, zero, strict=True)]
