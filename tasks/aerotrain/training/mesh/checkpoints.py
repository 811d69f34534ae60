"""Checkpoints of a model whose variables are distributed over processes."""

import shutil
from pathlib import Path

import tensorflow as tf
from tensorflow.experimental import dtensor

from aerotrain.store import fetch, publish
from aerotrain.training.checkpoints.checkpoints import FILE, Checkpoints, SavedState
from aerotrain.training.checkpoints.retention import remove
from aerotrain.training.checkpoints.snapshot import Snapshot
from aerotrain.training.context import TrainingContext
from aerotrain.training.internals import tensorflow2
from aerotrain.training.mesh.mesh import whole_of

#: The folder of a checkpoint's parts until the chief has merged them.
_PARTS = "parts"

#: A file in every part, so that none is empty.
_NOTHING = "nothing"


class MeshCheckpoints(Checkpoints):
    """Each process writes the variables of its devices; the chief merges them into one checkpoint.

    The parts are transferred through the store, because the processes share no disk. The published
    checkpoint is like any other, and a process without a mesh can read it. Training waits until all
    parts are in the store; a process with the whole mesh only reads its variables.
    """

    def __init__(self, context: TrainingContext, io_device: str | None) -> None:
        super().__init__(context, io_device)
        tensorflow2.serialized_tensors(self._checkpoint)  # so that no step waits: see MeshVariable

    def _read(self, checkpoint: tf.train.Checkpoint, folder: Path) -> None:
        super()._read(checkpoint, folder)
        tensorflow2.wait_for_operations()

    def _read_state(self, folder: Path) -> Snapshot | None:
        if dtensor.num_clients() == 1:
            return Snapshot.of(self._checkpoint, later=whole_of)
        shutil.rmtree(folder, ignore_errors=True)
        self._write(folder)
        return None

    def _write(self, folder: Path) -> None:
        own = folder.with_name(f"{folder.name}-own")
        self._checkpoint.write(str(own / FILE))
        self._wait_for_all()
        prefixes = [str(own / FILE)]
        for client in range(1, dtensor.num_clients()):
            part = f"{_PARTS}/{folder.name}/{client}"
            fetch(self._store, part, own / str(client))
            prefixes += [
                str(index.with_suffix("")) for index in (own / str(client)).rglob("*.index")
            ]
            remove(self._store, part)
        tf.raw_ops.MergeV2Checkpoints(
            checkpoint_prefixes=prefixes,
            destination_prefix=str(folder / FILE),
            delete_old_dirs=False,
        )
        shutil.rmtree(own)

    def save(self, state: SavedState) -> None:
        tensorflow2.wait_for_operations()  # which may still assign variables
        if self._context.is_chief:
            super().save(state)
            return
        name = self._name()
        folder = self._folder(name)
        self._checkpoint.write(str(folder / FILE))
        tensorflow2.wait_for_operations()
        # The chief alone writes replicated variables, so this folder may be empty otherwise.
        folder.mkdir(parents=True, exist_ok=True)
        (folder / _NOTHING).write_text("")
        publish(self._store, folder, f"{_PARTS}/{name}/{dtensor.client_id()}", {})
        shutil.rmtree(folder)
        self._wait_for_all()

    def _wait_for_all(self) -> None:
        """Wait until every process has called this, and its operations are done."""
        dtensor.barrier(self._context.counter.layout.mesh, "published")
