"""Checkpoints: read while training waits, then written and published while it continues.

A checkpoint is published in the store completely or not at all. A damaged one is not used.
"""

import math
import shutil
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from aerotrain.contract.errors import (
    AerotrainError,
    FinalError,
    SupersededError,
    TemporaryError,
)
from aerotrain.contract.layout import CHECKPOINTS
from aerotrain.store import CorruptError, Manifest, MissingError, Store, fetch, publish
from aerotrain.training.checkpoints.metadata import (
    check_same_training,
    model_config,
    path_of,
    training_config,
    words_of,
)
from aerotrain.training.checkpoints.retention import NOTHING, Name, Retention
from aerotrain.training.checkpoints.snapshot import Snapshot
from aerotrain.training.context import TrainingContext
from aerotrain.user_code import code_of

#: The prefix of TensorFlow's files in the folder of a checkpoint.
FILE = "checkpoint"
#: The folder in it of other files than TensorFlow's.
_FILES = "beside"


@dataclass(frozen=True, kw_only=True)
class SavedState:
    """What a checkpoint holds besides the variables: metadata as JSON, and files by name."""

    about: Mapping[str, Any] = field(default_factory=dict)
    files: Mapping[str, bytes] = field(default_factory=dict)


@dataclass(kw_only=True)
class Draft:
    """A checkpoint before its upload: first in memory, then in ``folder``."""

    name: Name
    folder: Path
    about: Mapping[str, Any]
    files: Mapping[str, bytes]
    snapshot: Snapshot | None


class Checkpoints:
    """The checkpoints of one training, in its store, which keeps some of the newest and the best.

    ``io_device`` is the device that reads and writes for all others; without it, each parameter
    server would use its own disk. The chief alone saves, for every replica has all variables of a
    model and its optimizer; its peers restore what it restores.
    """

    def __init__(self, context: TrainingContext, io_device: str | None) -> None:
        services, self._model = context.services, context.model
        self._context = context
        self._store = services.store
        self._uploader = services.uploader
        self._lease = services.lease
        self._scratch = context.replica.scratch / CHECKPOINTS
        self._io_device = io_device
        optimizer = {} if self._model.optimizer is None else {"optimizer": self._model.optimizer}
        self._checkpoint = tf.train.Checkpoint(
            step=context.counter, **optimizer, **_contents(self._model)
        )
        self._token = self._lease.token
        self._retention = Retention(self._store, context.arguments.keep, self._token)
        self._manifest: Manifest | None = None
        #: The name of the checkpoint that was restored.
        self.restored = NOTHING
        #: The folder of a checkpoint that is not in the store yet; a newer one takes its place.
        self._waiting: Path | None = None

    def choose(self) -> Name:
        """Fetch the newest complete checkpoint to this machine, and return its name.

        Returns ``NOTHING`` if there is none. A warning names each damaged checkpoint.
        """
        for name in reversed(self._retention.complete()):
            try:
                self._fetch(name)
            except (CorruptError, MissingError) as error:
                print(f"warning: the checkpoint of step {name.step} is damaged: {error}")
                print("training resumes from the one before it, if there is one", flush=True)
                self._retention.damaged.add(name)
                shutil.rmtree(self._folder(name), ignore_errors=True)
            else:
                return name
        return NOTHING

    def restore(self, name: Name, token: int) -> SavedState:
        """Restore the checkpoint of that name, and return its metadata and files.

        The names of later checkpoints contain the chief's ``token``.

        Raises:
            FinalError: the checkpoint belongs to another training, other code or another model.
            TemporaryError: the chief has fetched the checkpoint, but it could not be fetched here.
        """
        self._token, self.restored = token, name
        if name == NOTHING:
            return SavedState()
        if self._manifest is None:
            try:
                self._fetch(name)
            except (CorruptError, MissingError) as error:
                raise TemporaryError(f"{error}, as the chief has just done; try again") from error
        assert self._manifest is not None
        folder, about = self._folder(name), self._manifest.about
        check_same_training(self.url(name), about, self._context.arguments, self._model)
        with _of_this_model(self.url(name)):
            self._read(self._checkpoint, folder)
        files = {path.name: path.read_bytes() for path in folder.glob(f"{_FILES}/*")}
        shutil.rmtree(folder)
        return SavedState(about=about, files=files)

    def take(self, taken: Mapping[str, int], store: Store) -> None:
        """Give variables of the model values from the checkpoint in ``store``, of another training.

        ``taken`` has the place of each in the checkpoint, by its path.

        Raises:
            FinalError: a value does not fit, such as one of another dtype.
        """
        folder = self._scratch / "other"
        _fetch_whole(store, folder)
        variables = {path_of(each): each for each in self._model.weights}
        by_place = {str(place): variables[path] for path, place in taken.items()}
        try:
            # Their places in the list ``variables`` of ``_contents``.
            self._read(tf.train.Checkpoint(variables=tf.train.Checkpoint(**by_place)), folder)
        except (AssertionError, ValueError, tf.errors.InvalidArgumentError) as error:
            raise FinalError(
                f"the values of the checkpoint {store.url} do not fit the model: {error}; name "
                "another model by start_from, or leave it out"
            ) from error
        shutil.rmtree(folder)

    def _read(self, checkpoint: tf.train.Checkpoint, folder: Path) -> None:
        """Restore every variable of ``checkpoint`` from ``folder``, which may then be removed."""
        _read(checkpoint, folder, self._io_device)

    def save(self, state: SavedState) -> None:
        """Read the variables; writing and uploading the checkpoint happens in the background.

        Raises:
            FinalError: a weight is not finite; earlier checkpoints remain.
            TemporaryError: the store has been unavailable for too long.
        """
        if not self._context.is_chief:
            return
        self._uploader.check()
        name = self._name()
        about = {
            **state.about,
            "step": name.step,
            "token": name.token,
            "recipe": training_config(self._context.arguments),
            "code": code_of(self._context.arguments.model),
            "model": model_config(self._model),
            "words": self._words,
        }
        folder = self._folder(name)
        snapshot = self._read_state(folder)
        draft = Draft(name=name, folder=folder, about=about, files=state.files, snapshot=snapshot)
        self._uploader.send("checkpoint", lambda: self._deliver(draft))

    def finish(self, state: SavedState) -> str:
        """Save, and wait until the checkpoint is in the store.

        Returns:
            The URL of the checkpoint.
        """
        self.save(state)
        self._uploader.wait(math.inf)
        self._uploader.check()
        return self.url(self._name())

    @contextmanager
    def newest_named(self) -> Iterator[None]:
        """A scope that adds the newest complete checkpoint to the message of a final error."""
        try:
            yield
        except SupersededError:
            raise  # its checkpoints belong to its successor now
        except FinalError as error:
            cause = error
            self._uploader.wait(5)
            try:
                self._uploader.check()
            except FinalError as earlier:
                cause = earlier  # bad weights that were saved earlier
            except TemporaryError:
                pass  # an unavailable store is not why training fails
            newest = "no checkpoint was made"
            try:
                if complete := self._retention.complete():
                    newest = f"the last good checkpoint is {self.url(complete[-1])}"
            except AerotrainError as unknown:
                newest = f"the last good checkpoint is not known: {unknown}"
            raise FinalError(f"{cause}; {newest}") from error

    def url(self, name: Name) -> str:
        """The URL of the checkpoint of that name."""
        return checkpoint_store(self._store, name).url

    @cached_property
    def _words(self) -> list[str]:
        return words_of(self._model)

    def _name(self) -> Name:
        """The name of a checkpoint of the current step."""
        return Name(self._token, self._context.steps_done())

    def _folder(self, name: Name) -> Path:
        return self._scratch / str(name)

    def _fetch(self, name: Name) -> None:
        self._manifest = _fetch_whole(checkpoint_store(self._store, name), self._folder(name))

    def _read_state(self, _folder: Path) -> Snapshot | None:
        """Read the current state, or write it into the folder if it cannot be read."""
        if self._io_device is None:
            return Snapshot.of(self._checkpoint)
        return Snapshot.of(self._checkpoint, lambda tensor: tensor.numpy, remote=True)

    def _deliver(self, draft: Draft) -> None:
        """Write the snapshot and publish it, unless a newer one has taken its place."""
        if self._waiting is not None and self._waiting != draft.folder:
            shutil.rmtree(self._waiting, ignore_errors=True)
        self._waiting = draft.folder
        if draft.snapshot is not None:
            draft.snapshot.fetch()
            self._check_weights(draft.snapshot, draft.name.step)
            shutil.rmtree(draft.folder, ignore_errors=True)
            draft.snapshot.write(draft.folder / FILE, self._io_device)
            draft.snapshot = None  # frees its memory for the next one
        for file, content in draft.files.items():
            (draft.folder / _FILES).mkdir(exist_ok=True)
            (draft.folder / _FILES / file).write_bytes(content)
        prefix = f"{CHECKPOINTS}/{draft.name}"
        publish(self._store, draft.folder, prefix, draft.about, self._lease.check)
        shutil.rmtree(draft.folder)
        print(f"the checkpoint of step {draft.name.step} is in the store", flush=True)
        # By itself: if the store fails now, only the removal is repeated.
        self._uploader.send("removal of checkpoints", self._remove_old)

    def _remove_old(self) -> None:
        self._lease.check()
        self._retention.drop()

    def _check_weights(self, snapshot: Snapshot, step: int) -> None:
        """Check that all weights are finite.

        Steps of a coordinator's workers may have spoiled them that were in flight.
        """
        values = dict(zip(map(id, snapshot.owners), snapshot.values, strict=True))
        for variable in self._model.trainable_variables:
            value = values.get(id(variable))
            if value is not None and not np.isfinite(np.asarray(value)).all():
                raise FinalError(
                    f"{path_of(variable)} is no finite number after step {step}, so training has "
                    "stopped there; lower the learning rate, or clip the gradients"
                )


def checkpoint_store(store: Store, name: Name) -> Store:
    """The part of ``store`` that holds the checkpoint of that name."""
    return store.child(f"{CHECKPOINTS}/{name}")


def _contents(model: keras.Model) -> dict[str, Any]:
    """What a checkpoint saves of a model.

    The variables are listed explicitly, because TensorFlow does not find all of them through the
    model: it misses the seeds of dropout, which a resumed training would repeat.
    """
    return {"model": model, "variables": model.variables}


def _read(checkpoint: tf.train.Checkpoint, folder: Path, io_device: str | None = None) -> None:
    options = tf.train.CheckpointOptions(experimental_io_device=io_device)
    status = checkpoint.read(str(folder / FILE), options)
    status.expect_partial().assert_existing_objects_matched()


def _fetch_whole(store: Store, folder: Path) -> Manifest:
    """Fetch the checkpoint in ``store`` into ``folder``.

    Raises:
        CorruptError: it is damaged, or its manifest does not list all of TensorFlow's files.
    """
    manifest = fetch(store, "", folder)
    data = [key for key in manifest.files if key.startswith(f"{FILE}.data-")]
    # TensorFlow's names end in the number of files: checkpoint.data-00000-of-00002.
    if f"{FILE}.index" not in manifest.files or not data or len(data) != int(data[0][-5:]):
        raise CorruptError(
            f"the manifest of {store.url} does not list all files of a checkpoint, but "
            f"{', '.join(manifest.files)}; use an earlier one"
        )
    return manifest


def restore_weights(model: keras.Model, store: Store, folder: Path) -> None:
    """Load the weights of the checkpoint in ``store`` into ``model``, by way of ``folder``.

    Raises:
        FinalError: the checkpoint is of another model.
    """
    _fetch_whole(store, folder)
    with _of_this_model(store.url):
        # By object, never by key: Keras may keep the weights under the optimizer's name.
        _read(tf.train.Checkpoint(**_contents(model)), folder)


@contextmanager
def _of_this_model(url: str) -> Iterator[None]:
    try:
        yield
    except (AssertionError, ValueError) as error:
        raise FinalError(
            f"the checkpoint {url} is of another model than build_model returns now: {error}; "
            "undo the change, or begin a new run"
        ) from error
