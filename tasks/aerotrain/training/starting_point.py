"""The model whose values a training starts with: ``start_from``, resolved once.

The chief that begins a training resolves it, and writes the result to the store before any
variable is changed. A later attempt that has no checkpoint yet starts with the same model, even if
another version is served by then. One that has a checkpoint continues from there.
"""

import json
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Self

import keras

from aerotrain.contract.errors import FinalError, counted
from aerotrain.contract.gate import SERVING
from aerotrain.contract.job import Job, prefix_of
from aerotrain.contract.layout import MODEL, STARTED_FROM, path_segment
from aerotrain.layers import ShardedEmbedding
from aerotrain.serving.alias import served_version
from aerotrain.store import MANIFEST, CorruptError, Manifest, MissingError, Store, open_store
from aerotrain.training.checkpoints.checkpoints import Checkpoints
from aerotrain.training.checkpoints.metadata import model_config, words_of
from aerotrain.training.context import TrainingContext
from aerotrain.training.internals import keras3
from aerotrain.training.model_manifest import ModelManifest

#: The most variables that a line names.
_NAMED = 8


@dataclass(frozen=True, kw_only=True)
class StartingPoint:
    """A trained model: the URL of its manifest, and the URL of the checkpoint with its values."""

    model: str
    checkpoint: str


@dataclass(frozen=True, kw_only=True)
class Transfer:
    """Which variables of a model get values from a checkpoint: those of equal path and shape.

    ``taken`` has the place in the checkpoint of each by its path. ``new`` are the variables that
    keep their initial values, each with the reason, and ``left`` those of the checkpoint that none
    takes. ``other_words`` is whether lookup layers have other words than those of the checkpoint.
    """

    taken: Mapping[str, int]
    new: Sequence[str]
    left: Sequence[str]
    other_words: bool = False

    @classmethod
    def plan(cls, about: Mapping[str, Any], model: keras.Model) -> Self:
        """The transfer to ``model`` from a checkpoint with the metadata ``about``.

        Row 5 of an embedding means the word of which a lookup layer makes 5. So no embedding is
        taken where lookup layers have other words.
        """
        was, now = about["model"], model_config(model)
        old, paths = dict(was["variables"]), [path for path, _ in was["variables"]]
        places = dict(zip(paths, was["places"], strict=True))
        counts = Counter(paths), Counter(path for path, _ in now["variables"])
        changed: set[str] = set()
        if other_words := about.get("words", []) != words_of(model):
            kinds = (keras.layers.Embedding, ShardedEmbedding)
            tables = (each for each in keras3.layers(model) if isinstance(each, kinds))
            changed = {variable.path for each in tables for variable in each.weights}
        taken, new = {}, []
        for path, shape in now["variables"]:
            if any(each[path] > 1 for each in counts):
                reason = "several variables have this path"
            elif path not in old:
                reason = "there is no such path"
            elif old[path] != shape:
                reason = f"its shape was {tuple(old[path])}"
            elif path in changed:
                reason = "the words of the lookup layers were others"
            else:
                taken[path] = places[path]
                continue
            new.append(f"{path} {tuple(shape)}: {reason}")
        left = [f"{path} {tuple(shape)}" for path, shape in old.items() if path not in taken]
        return cls(taken=taken, new=new, left=left, other_words=other_words)

    def print(self, title: str) -> None:
        """Print the lists under ``title``, each in one line."""
        print(f"{title}\n  taken: {counted(len(self.taken), 'variable')}", flush=True)
        for what, names in (("new", self.new), ("left", self.left)):
            if names:
                print(f"  {what}: {_some(names)}", flush=True)
        if self.other_words:
            print(
                "  warning: lookup layers have other words: no embedding is taken; rename layers "
                "that take words by their places in another way",
                flush=True,
            )


def resolve(job: Job, start_from: str) -> StartingPoint | None:
    """The starting point of the training ``job``; None if no version is served yet.

    Raises:
        FinalError: there is no such model.
    """
    url: str | None = start_from
    if start_from == SERVING:
        url = served_version(job.store)
    elif "://" not in start_from:
        url = prefix_of(job.store, path_segment(start_from), job.task)
    if url is None:
        print(
            "start_from is 'serving', and this pipeline has exported no version yet: the training "
            "starts from scratch",
            flush=True,
        )
        return None
    return _point(url.rstrip("/"))


def begin(context: TrainingContext, checkpoints: Checkpoints) -> None:
    """Give the model of a training without a checkpoint the values of its starting point.

    Every replica that has the model calls it.

    Raises:
        FinalError: there is no such model, or nothing of it fits.
    """
    store, start_from = context.services.store, context.arguments.start_from
    assert start_from is not None
    # An earlier attempt may have decided it.
    if context.is_chief and _record(store).get("start_from") != start_from:
        point = resolve(context.replica.job, start_from)
        record: dict[str, Any] = {"start_from": start_from, "model": None, "checkpoint": None}
        if point is not None:
            plan = _transfer(point, context.model)
            record = {"start_from": start_from, "model": point.model}
            record |= {"checkpoint": point.checkpoint, "taken": list(plan.taken)}
            record |= {"new": plan.new, "left": plan.left}
        context.services.deliver(STARTED_FROM, json.dumps(record, indent=1).encode())
    context.distribution.numbers([0])  # the others read what the chief has written
    record = _record(store)
    if record["model"] is None:
        return
    transfer = _transfer(
        StartingPoint(model=record["model"], checkpoint=record["checkpoint"]), context.model
    )
    checkpoints.take(transfer.taken, open_store(record["checkpoint"]))
    transfer.print(f"starting from {record['model']}")


def started_from(context: TrainingContext) -> Mapping[str, Any] | None:
    """The record of the starting point of a training; None without ``start_from``."""
    if context.arguments.start_from is None:
        return None
    return _record(context.services.store) or None


def _transfer(point: StartingPoint, model: keras.Model) -> Transfer:
    """The plan of what ``model`` takes of ``point``.

    Raises:
        FinalError: it can take nothing, or the checkpoint is gone.
    """
    try:
        about = Manifest.from_json(open_store(point.checkpoint).get(MANIFEST)).about
    except MissingError as error:
        raise FinalError(
            f"the checkpoint of {point.model} is gone, so that no training can start from it: "
            f"{error}"
        ) from error
    transfer = Transfer.plan(about, model)
    if not transfer.taken:
        raise FinalError(
            f"{point.model} is another model, of which no variable fits this one: it has "
            f"{_some(transfer.left)}, and of this one, {_some(transfer.new)}; name another model "
            "by start_from, or leave it out"
        )
    return transfer


def _record(store: Store) -> dict[str, Any]:
    try:
        record: dict[str, Any] = json.loads(store.get(STARTED_FROM))
    except MissingError:
        return {}
    return record


def _point(url: str) -> StartingPoint:
    """The trained model at ``url``, that of which the version there was made, or a checkpoint."""
    made_of: Any = url if url.endswith(".json") else f"{url}/{MODEL}"
    try:
        return StartingPoint(model=made_of, checkpoint=ModelManifest.load(made_of).checkpoint)
    except MissingError:
        pass
    try:  # what the manifest of a version or a checkpoint says of its model
        made_of = Manifest.from_json(open_store(url).get(MANIFEST)).about["model"]
    except (MissingError, CorruptError, KeyError) as error:
        raise FinalError(
            f"there is no trained model, exported version or checkpoint at {url}, from "
            "which the training should start; name another by start_from"
        ) from error
    if isinstance(made_of, Mapping):  # the description that a checkpoint has of its variables
        return StartingPoint(model=url, checkpoint=url)
    try:
        return StartingPoint(model=made_of, checkpoint=ModelManifest.load(made_of).checkpoint)
    except MissingError as error:
        raise FinalError(
            f"the exported version {url} was made of {made_of}, which is gone, and a training "
            "starts from its checkpoint; name another by start_from"
        ) from error


def _some(names: Sequence[str]) -> str:
    """The first names, and how many more there are."""
    more = len(names) - _NAMED
    return "; ".join(names[:_NAMED]) + (f"; and {more} more" if more > 0 else "")
