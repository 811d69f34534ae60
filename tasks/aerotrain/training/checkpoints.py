"""Checkpoints: written to this machine's disk, then published in the store, whole or not at all."""

import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import keras
import tensorflow as tf

from aerotrain.contract.errors import FinalError
from aerotrain.store import MANIFEST, Store, fetch, publish

_FOLDER = "checkpoints"
_FILE = "checkpoint"


class Checkpoints:
    """The checkpoints of one training, in ``store``, of which the newest ``keep`` stay there.

    ``counter`` is the variable that counts the steps. ``io_device`` is the device that reads
    and writes for all others; without one, each parameter server would use a disk of its own.
    """

    def __init__(
        self,
        store: Store,
        scratch: Path,
        model: keras.Model,
        counter: tf.Variable,
        *,
        keep: int,
        io_device: str | None,
    ) -> None:
        self._store = store
        self._scratch = scratch / _FOLDER
        self._counter = counter
        self._checkpoint = tf.train.Checkpoint(
            optimizer=model.optimizer, step=counter, **_contents(model)
        )
        self._options = tf.train.CheckpointOptions(experimental_io_device=io_device)
        self._keep = keep

    def restore(self) -> Mapping[str, Any]:
        """Go on from the newest checkpoint, and return what was said about it; else nothing.

        Raises:
            FinalError: the checkpoint is of another model than this one.
        """
        sealed = self._sealed()
        if not sealed:
            return {}
        folder = self._scratch / sealed[-1]
        manifest = fetch(self._store, f"{_FOLDER}/{sealed[-1]}", folder)
        try:
            status = self._checkpoint.read(str(folder / _FILE), self._options)
            status.assert_existing_objects_matched()
        except (AssertionError, ValueError) as error:
            raise FinalError(
                f"the checkpoint {self.url(sealed[-1])} is of another model than build_model "
                f"returns now: {error}; undo the change, or begin a new run"
            ) from error
        shutil.rmtree(folder)
        return manifest.about

    def save(self, about: Mapping[str, Any]) -> str:
        """Publish the state of now, drop what is older than the newest ``keep``.

        Returns:
            The URL of the checkpoint.
        """
        name = f"{int(self._counter.numpy()):010d}"
        folder = self._scratch / name
        self._checkpoint.write(str(folder / _FILE), self._options)
        publish(self._store, folder, f"{_FOLDER}/{name}", about)
        shutil.rmtree(folder)
        for old in self._sealed()[: -self._keep]:
            self._drop(old)
        print(f"the checkpoint of step {int(name)} is in the store", flush=True)
        return self.url(name)

    def url(self, name: str) -> str:
        """Where the checkpoint of that name is."""
        return f"{self._store.url}/{_FOLDER}/{name}"

    def _sealed(self) -> list[str]:
        """The names of the whole checkpoints, oldest first."""
        parts = [stored.key.split("/") for stored in self._store.list(_FOLDER)]
        return sorted(name for _, name, *rest in parts if rest == [MANIFEST])

    def _drop(self, name: str) -> None:
        """Remove one checkpoint, its manifest first, so that it is never seen in part."""
        prefix = f"{_FOLDER}/{name}"
        keys = [stored.key for stored in self._store.list(prefix)]
        for key in sorted(keys, key=lambda key: key != f"{prefix}/{MANIFEST}"):
            self._store.delete(key)


def _contents(model: keras.Model) -> dict[str, Any]:
    """What a checkpoint keeps of a model.

    Its variables are listed beside it, for TensorFlow does not find all of them by itself:
    the seeds of dropout are out of its reach, and a training that goes on would repeat them.
    """
    return {"model": model, "variables": model.variables}


def restore_weights(model: keras.Model, store: Store, folder: Path) -> None:
    """Give ``model`` the weights of the checkpoint that ``store`` holds, by way of ``folder``.

    Raises:
        FinalError: the checkpoint is of another model.
    """
    fetch(store, "", folder)
    try:
        # By object, never by key: Keras may keep the weights under the optimizer's name.
        status = tf.train.Checkpoint(**_contents(model)).read(str(folder / _FILE))
        status.expect_partial().assert_existing_objects_matched()
    except (AssertionError, ValueError) as error:
        raise FinalError(
            f"the checkpoint {store.url} is of another model than build_model returns now: "
            f"{error}; undo the change, or train again"
        ) from error
