"""A copy in memory of everything that a checkpoint holds.

Training waits only for the copy, while TensorFlow's own saving would also write to the disk. The
files have TensorFlow's format, and are read by ``tf.train.Checkpoint.read``.
"""

import errno
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import tensorflow as tf

from aerotrain.training.internals import tensorflow2


@dataclass
class Snapshot:
    """The values of a ``tf.train.Checkpoint``'s variables, by TensorFlow's names for them."""

    names: list[str]
    slices: list[str]
    values: list[Any]
    owners: list[Any]
    _by_owner: dict[int, Any] = field(default_factory=dict)

    @classmethod
    def of(cls, checkpoint: tf.train.Checkpoint, at_once: int) -> "Snapshot":
        """Copy every variable of ``checkpoint`` as it is now, ``at_once`` of them at a time.

        A variable of another process takes a round trip each, so several are copied at once.
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
        with ThreadPoolExecutor(at_once) as pool:
            values = list(pool.map(_value, read))
        return cls(names, slices, values, owners)

    def of_variable(self, variable: Any) -> Any:
        """The value of ``variable``, or None if its owner is unknown."""
        if not self._by_owner:
            pairs = zip(self.owners, self.values, strict=True)
            self._by_owner = {id(owner): value for owner, value in pairs}
        return self._by_owner.get(id(variable))

    def write(self, prefix: Path, device: str | None) -> None:
        """Write the values as the checkpoint ``prefix``, by ``device`` of this machine.

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


def _value(given: Any) -> Any:
    """The value of a tensor, or of a callable that reads it."""
    given = getattr(given, "tensor", given)
    return (given() if callable(given) else given).numpy()
