"""A copy of everything that a checkpoint holds, in this machine's memory.

Training waits for the copy alone: TensorFlow's own saving would write to the disk meanwhile.
What is written is what TensorFlow writes, and is read by ``tf.train.Checkpoint.read``.
"""

import errno
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import tensorflow as tf


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
        """Copy every variable of ``checkpoint`` as it is now, so many ``at_once``.

        Those of other processes each take a journey, on which others need not wait.
        """
        names, slices, read, owners = [], [], [], []
        serialized, *_ = checkpoint._saver._gather_serialized_tensors()
        for owner, tensors in serialized.items():
            for name, each in tensors.items():
                # A variable that is cut into slices has a tensor for each.
                for part, value in (each if isinstance(each, dict) else {"": each}).items():
                    names.append(name)
                    slices.append(part.strip())
                    read.append(value)
                    owners.append(getattr(owner, "obj", owner))
        with ThreadPoolExecutor(at_once) as pool:
            values = list(pool.map(_value, read))
        return cls(names, slices, values, owners)

    def of_variable(self, variable: Any) -> Any:
        """The value of ``variable``, or None if it is not known whose it is."""
        if not self._by_owner:
            pairs = zip(self.owners, self.values, strict=True)
            self._by_owner = {id(owner): value for owner, value in pairs}
        return self._by_owner.get(id(variable))

    def write(self, prefix: Path, device: str | None) -> None:
        """Write the values as the checkpoint ``prefix``, by ``device`` of this machine.

        Raises:
            OSError: there is no room for it.
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
    """The value of what TensorFlow gives: a tensor, or something that reads it when asked."""
    given = getattr(given, "tensor", given)
    return (given() if callable(given) else given).numpy()
