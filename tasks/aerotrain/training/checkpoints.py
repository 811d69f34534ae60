"""Checkpoints: written to this machine's disk, then published in the store, whole or not at all."""

import shutil
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from aerotrain.contract.errors import FinalError
from aerotrain.store import MANIFEST, Store, fetch, publish

_FOLDER = "checkpoints"
#: What TensorFlow calls its files in the folder of a checkpoint.
FILE = "checkpoint"
_BESIDE = "beside"


@dataclass(frozen=True, kw_only=True)
class Restored:
    """What was said of the checkpoint that training goes on from, and files kept beside it."""

    about: Mapping[str, Any] = field(default_factory=dict)
    files: Mapping[str, bytes] = field(default_factory=dict)


class Checkpoints:
    """The checkpoints of one training, in ``store``, of which the newest ``keep`` stay there.

    ``counter`` is the variable that counts the steps. ``recipe`` is what decides the course of
    a training: one does not go on from another's checkpoint. ``io_device`` is the device that reads
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
        recipe: Mapping[str, Any],
        io_device: str | None,
    ) -> None:
        self._store = store
        self._scratch = scratch / _FOLDER
        self._counter = counter
        self._model = model
        optimizer = {} if model.optimizer is None else {"optimizer": model.optimizer}
        self._checkpoint = tf.train.Checkpoint(step=counter, **optimizer, **_contents(model))
        self._options = tf.train.CheckpointOptions(experimental_io_device=io_device)
        self._keep = keep
        self._recipe = recipe

    def restore(self) -> Restored:
        """Go on from the newest checkpoint, and return what is beside it; else nothing.

        Raises:
            FinalError: the checkpoint is of another training or another model than this one.
        """
        sealed = self._sealed()
        if not sealed:
            return Restored()
        folder = self._scratch / sealed[-1]
        manifest = fetch(self._store, f"{_FOLDER}/{sealed[-1]}", folder)
        self._refuse_another_recipe(sealed[-1], manifest.about.get("recipe", {}))
        try:
            status = self._checkpoint.read(str(folder / FILE), self._options)
            status.assert_existing_objects_matched()
        except (AssertionError, ValueError) as error:
            raise FinalError(
                f"the checkpoint {self.url(sealed[-1])} is of another model than build_model "
                f"returns now: {error}; undo the change, or begin a new run"
            ) from error
        files = {path.name: path.read_bytes() for path in folder.glob(f"{_BESIDE}/*")}
        shutil.rmtree(folder)
        return Restored(about=manifest.about, files=files)

    def save(self, about: Mapping[str, Any], files: Mapping[str, bytes]) -> str:
        """Publish the state of now, drop what is older than the newest ``keep``.

        Returns:
            The URL of the checkpoint.

        Raises:
            FinalError: a weight is no finite number; the checkpoints before stay as they are.
        """
        self._refuse_bad_weights()
        name = self._name()
        folder = self._scratch / name
        self._write(folder)
        for file, content in files.items():
            (folder / _BESIDE).mkdir(exist_ok=True)
            (folder / _BESIDE / file).write_bytes(content)
        about = {**about, "recipe": self._recipe}
        publish(self._store, folder, f"{_FOLDER}/{name}", about)
        shutil.rmtree(folder)
        for old in self._sealed()[: -self._keep]:
            self._remove(f"{_FOLDER}/{old}")
        print(f"the checkpoint of step {int(name)} is in the store", flush=True)
        return self.url(name)

    def _refuse_another_recipe(self, name: str, recipe: Mapping[str, Any]) -> None:
        changes = [
            f"{key} was {recipe[key]!r} and is {now!r}"
            for key, now in self._recipe.items()
            if key in recipe and recipe[key] != now
        ]
        if changes:
            raise FinalError(
                f"the checkpoint {self.url(name)} is of another training: {'; '.join(changes)}; "
                "begin a new run, or delete that run's checkpoints"
            )

    def _name(self) -> str:
        return f"{int(self._counter.numpy()):010d}"

    def _write(self, folder: Path) -> None:
        """Write the state of now into ``folder``."""
        self._checkpoint.write(str(folder / FILE), self._options)

    def url(self, name: str) -> str:
        """Where the checkpoint of that name is."""
        return f"{self._store.url}/{_FOLDER}/{name}"

    def newest(self) -> str | None:
        """The URL of the newest whole checkpoint, if there is one."""
        sealed = self._sealed()
        return self.url(sealed[-1]) if sealed else None

    def _refuse_bad_weights(self) -> None:
        """A gradient may spoil the weights a step before the loss shows it."""
        for variable in self._model.trainable_variables:
            if not self._is_finite(variable):
                name = getattr(variable, "path", variable.name)  # tf_keras has no paths
                raise FinalError(
                    f"{name} is no finite number after step {int(self._counter.numpy())}, "
                    "so training has stopped there; lower the learning rate, or clip the gradients"
                )

    def _is_finite(self, variable: Any) -> bool:
        return bool(np.isfinite(np.asarray(variable.numpy(), np.float32)).all())

    def _sealed(self) -> list[str]:
        return sealed_checkpoints(self._store)

    def _remove(self, prefix: str) -> None:
        """Remove what was published there, its manifest first: it is never seen in part."""
        keys = [stored.key for stored in self._store.list(prefix)]
        for key in sorted(keys, key=lambda key: key != f"{prefix}/{MANIFEST}"):
            self._store.delete(key)


def sealed_checkpoints(store: Store) -> list[str]:
    """The names of the whole checkpoints of the training in ``store``, oldest first."""
    parts = [stored.key.split("/") for stored in store.list(_FOLDER)]
    return sorted(name for _, name, *rest in parts if rest == [MANIFEST])


def checkpoint_store(store: Store, name: str) -> Store:
    """The part of ``store`` that holds the checkpoint of that name."""
    return store.child(f"{_FOLDER}/{name}")


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
        status = tf.train.Checkpoint(**_contents(model)).read(str(folder / FILE))
        status.expect_partial().assert_existing_objects_matched()
    except (AssertionError, ValueError) as error:
        raise FinalError(
            f"the checkpoint {store.url} is of another model than build_model returns now: "
            f"{error}; undo the change, or train again"
        ) from error
