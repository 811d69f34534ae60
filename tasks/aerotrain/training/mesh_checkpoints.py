"""Checkpoints of a model that no process holds the whole of."""

import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import tensorflow as tf
from tensorflow.experimental import dtensor

from aerotrain.store import fetch, publish
from aerotrain.training.checkpoints import FILE, Checkpoints
from aerotrain.training.layouts import host

#: Where the parts of a checkpoint are until the chief has put them together.
_PARTS = "parts"


class MeshCheckpoints(Checkpoints):
    """Each process writes what its devices hold; the chief merges it into one checkpoint.

    The parts go through the store, for the processes have no disk in common. What is
    published is a checkpoint like any other, which a process without a mesh can read.
    """

    def _write(self, folder: Path) -> None:
        if dtensor.num_clients() == 1:
            super()._write(folder)
            return
        own = folder.with_name(f"{folder.name}-own")
        self._checkpoint.write(str(own / FILE))
        self._meet("written")
        prefixes = [str(own / FILE)]
        for client in range(1, dtensor.num_clients()):
            part = self._part(folder.name, client)
            fetch(self._store, part, own / str(client))
            prefixes += [
                str(index.with_suffix("")) for index in (own / str(client)).rglob("*.index")
            ]
            self._remove(part)
        tf.raw_ops.MergeV2Checkpoints(
            checkpoint_prefixes=prefixes,
            destination_prefix=str(folder / FILE),
            delete_old_dirs=False,
        )
        shutil.rmtree(own)

    def _part(self, name: str, client: int) -> str:
        return f"{_PARTS}/{name}/{client}"

    def _meet(self, what: str) -> None:
        """Wait until every process has come here."""
        mesh = self._counter.layout.mesh
        dtensor.barrier(mesh, what)

    def _is_finite(self, variable: Any) -> bool:
        value = variable._value.read_value()
        with dtensor.default_mesh(self._counter.layout.mesh):
            return bool(host(tf.reduce_all(tf.math.is_finite(value))))


class PeerMeshCheckpoints(MeshCheckpoints):
    """Restores what the chief restores, and leaves its parts to the chief."""

    def save(self, _about: Mapping[str, Any], _files: Mapping[str, bytes]) -> str:
        self._refuse_bad_weights()
        name = self._name()
        folder = self._scratch / name
        self._checkpoint.write(str(folder / FILE))
        publish(self._store, folder, self._part(name, dtensor.client_id()), {})
        shutil.rmtree(folder)
        self._meet("written")
        return ""
