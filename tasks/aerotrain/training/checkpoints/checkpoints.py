"""Checkpoints: copied while training waits, and written and published while it goes on.

They are published in the store, whole or not at all. What is damaged there is not used.
"""

import math
import shutil
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from aerotrain.contract.errors import AerotrainError, FinalError, TemporaryError
from aerotrain.lease import Lease
from aerotrain.store import CorruptError, Manifest, MissingError, Store, fetch, publish
from aerotrain.training.background.uploader import Uploader
from aerotrain.training.checkpoints.compatibility import (
    check_same_model,
    check_same_recipe,
    described,
    tell_changes,
)
from aerotrain.training.checkpoints.retention import FOLDER, NOTHING, Name, Retention
from aerotrain.training.checkpoints.snapshot import Snapshot

#: What TensorFlow calls its files in the folder of a checkpoint.
FILE = "checkpoint"
_BESIDE = "beside"

#: Variables of other processes that are copied at once.
_JOURNEYS = 8


@dataclass(frozen=True, kw_only=True)
class Restored:
    """What was said of the checkpoint that training goes on from, and files kept beside it."""

    about: Mapping[str, Any] = field(default_factory=dict)
    files: Mapping[str, bytes] = field(default_factory=dict)


@dataclass(kw_only=True)
class Draft:
    """A checkpoint on its way to the store: in memory, and then in ``folder``."""

    name: Name
    folder: Path
    about: Mapping[str, Any]
    files: Mapping[str, bytes]
    snapshot: Snapshot | None


class Checkpoints:
    """The checkpoints of one training, in ``store``: the newest ``keep`` stay there, and the best.

    ``counter`` is the variable that counts the steps. ``recipe`` is what decides the course of
    a training: one does not go on from another's checkpoint. ``setting`` is on what it runs,
    which may change. ``io_device`` is the device that reads and writes for all others; without
    one, each parameter server would use a disk of its own. ``lease`` is held by the chief, the
    only one that publishes.
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
        setting: Mapping[str, Any],
        io_device: str | None,
        uploader: Uploader,
        lease: Lease,
    ) -> None:
        self._store = store
        self._scratch = scratch / FOLDER
        self._counter = counter
        self._model = model
        optimizer = {} if model.optimizer is None else {"optimizer": model.optimizer}
        self._checkpoint = tf.train.Checkpoint(step=counter, **optimizer, **_contents(model))
        self._io_device = io_device
        self._keep = keep
        self._recipe = recipe
        self._setting = setting
        self._uploader = uploader
        self._lease = lease
        self._token = lease.token
        self._retention = Retention(store, keep, lease.token)
        self._manifest: Manifest | None = None
        #: What is on this machine's disk and not in the store.
        self._local: list[Draft] = []
        #: Seconds for which the last save kept training waiting.
        self.stall = 0.0

    def choose(self) -> Name:
        """Bring the newest checkpoint that is whole to this machine, and return its name.

        Without any it is ``NOTHING``. Each that is damaged is named.
        """
        self._retention.name_leftovers()
        for name in reversed(self._retention.sealed()):
            try:
                self._fetch(name)
            except (CorruptError, MissingError) as error:
                print(f"warning: the checkpoint of step {name.step} is damaged: {error}")
                print("training goes on from the one before it, if there is one", flush=True)
                self._retention.doubt(name)
                shutil.rmtree(self._folder(name), ignore_errors=True)
            else:
                return name
        return NOTHING

    def restore(self, name: Name, token: int) -> Restored:
        """Go on from the checkpoint of that name, and return what is beside it.

        What is saved from now on has the chief's ``token`` in its name.

        Raises:
            FinalError: the checkpoint is of another training or another model than this one.
            TemporaryError: it is whole where the chief is, and could not be fetched here.
        """
        self._token = token
        if name == NOTHING:
            return Restored()
        if self._manifest is None:
            try:
                self._fetch(name)
            except (CorruptError, MissingError) as error:
                raise TemporaryError(f"{error}, as the chief has just done; try again") from error
        assert self._manifest is not None
        folder, about = self._folder(name), self._manifest.about
        check_same_recipe(self.url(name), about.get("recipe", {}), self._recipe)
        check_same_model(self.url(name), about, self._setting, self._model)
        tell_changes(about.get("setting", {}), self._setting)
        try:
            options = tf.train.CheckpointOptions(experimental_io_device=self._io_device)
            status = self._checkpoint.read(str(folder / FILE), options)
            status.assert_existing_objects_matched()
        except (AssertionError, ValueError) as error:
            raise FinalError(
                f"the checkpoint {self.url(name)} is of another model than build_model "
                f"returns now: {error}; undo the change, or begin a new run"
            ) from error
        files = {path.name: path.read_bytes() for path in folder.glob(f"{_BESIDE}/*")}
        shutil.rmtree(folder)
        return Restored(about=about, files=files)

    def save(self, about: Mapping[str, Any], files: Mapping[str, bytes]) -> None:
        """Copy the state of now; what follows, from the disk to the store, is not waited for.

        Raises:
            FinalError: a weight is no finite number; the checkpoints before stay as they are.
            TemporaryError: the store has been away for too long.
        """
        began = time.monotonic()
        self.check()
        name = self._name()
        about = {
            **about,
            "step": name.step,
            "token": name.token,
            "recipe": self._recipe,
            "setting": self._setting,
            "model": described(self._model),
        }
        folder = self._folder(name)
        snapshot = self._copy(folder)
        draft = Draft(name=name, folder=folder, about=about, files=files, snapshot=snapshot)
        self._uploader.send("checkpoint", lambda: self._deliver(draft))
        self.stall = time.monotonic() - began

    def finish(self, about: Mapping[str, Any], files: Mapping[str, bytes]) -> str:
        """Save, and wait until that is in the store.

        Returns:
            The URL of the checkpoint.
        """
        self.save(about, files)
        self._uploader.wait(math.inf)
        self.check()
        return self.url(self._name())

    def hurry(self, seconds: float) -> bool:
        """Wait that long for what was saved to be in the store; whether it is there."""
        return self._uploader.wait(seconds)

    def check(self) -> None:
        """Raise what has gone wrong for good since the last save."""
        try:
            self._uploader.check()
        except TemporaryError as error:
            raise TemporaryError(f"{error}; {self._here()}") from error

    def fault(self) -> FinalError | None:
        """What has been found wrong for good with what was saved, if anything."""
        try:
            self.check()
        except FinalError as error:
            return error
        except TemporaryError:
            pass  # that the store is away is not why training fails
        return None

    def newest(self) -> str:
        """Where the newest whole checkpoint is, in words."""
        self._uploader.wait(5)
        try:
            sealed = self._retention.sealed()
        except AerotrainError:
            return self._here()
        if not sealed:
            return "no checkpoint was made"
        return f"the last good checkpoint is {self.url(sealed[-1])}"

    def url(self, name: Name) -> str:
        """Where the checkpoint of that name is."""
        return f"{self._store.url}/{FOLDER}/{name}"

    def _here(self) -> str:
        local = ", ".join(str(draft.folder) for draft in self._local)
        return (
            f"on this machine are the checkpoints {local}" if local else "none is on this machine"
        )

    def _name(self) -> Name:
        """The name of a checkpoint of now."""
        return Name(self._token, int(self._counter.numpy()))

    def _folder(self, name: Name) -> Path:
        return self._scratch / str(name)

    def _fetch(self, name: Name) -> None:
        self._manifest = fetch(self._store, f"{FOLDER}/{name}", self._folder(name))

    def _copy(self, _folder: Path) -> Snapshot | None:
        """Copy the state of now, or write it into the folder where it cannot be copied."""
        return Snapshot.of(self._checkpoint, at_once=_JOURNEYS if self._io_device else 1)

    def _deliver(self, draft: Draft) -> None:
        """Write what was copied, and publish it with all that still waits for the store."""
        if draft.snapshot is not None:
            self._check_weights(draft.snapshot, draft.name.step)
            shutil.rmtree(draft.folder, ignore_errors=True)
            draft.snapshot.write(draft.folder / FILE, self._io_device)
            draft.snapshot = None  # so that its memory is free for the next
        for file, content in draft.files.items():
            (draft.folder / _BESIDE).mkdir(exist_ok=True)
            (draft.folder / _BESIDE / file).write_bytes(content)
        others = [each for each in self._local if each.name != draft.name]
        for old in others[: len(others) + 1 - self._keep]:
            shutil.rmtree(old.folder, ignore_errors=True)
            others.remove(old)
        self._local = [*others, draft]
        for each in reversed(self._local):
            prefix = f"{FOLDER}/{each.name}"
            publish(self._store, each.folder, prefix, each.about, self._lease.look)
            self._retention.published(each.name, each.about)
            self._local = [other for other in self._local if other is not each]
            shutil.rmtree(each.folder)
            print(f"the checkpoint of step {each.name.step} is in the store", flush=True)
        self._lease.look()
        self._retention.drop()

    def _check_weights(self, snapshot: Snapshot, step: int) -> None:
        """A gradient may spoil the weights a step before the loss shows it."""
        for variable in self._model.trainable_variables:
            value = snapshot.of_variable(variable)
            if value is not None and not np.isfinite(np.asarray(value, np.float32)).all():
                raise bad_weights(variable, step)


def bad_weights(variable: Any, step: int) -> FinalError:
    """The error of a training whose weights are no numbers any more."""
    name = getattr(variable, "path", variable.name)  # tf_keras has no paths
    return FinalError(
        f"{name} is no finite number after step {step}, so training has stopped there; lower "
        "the learning rate, or clip the gradients"
    )


def checkpoint_store(store: Store, name: Name) -> Store:
    """The part of ``store`` that holds the checkpoint of that name."""
    return store.child(f"{FOLDER}/{name}")


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
