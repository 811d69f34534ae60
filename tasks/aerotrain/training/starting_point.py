"""The model whose values a training starts with: ``start_from``, resolved once.

The chief that begins a training resolves it, and writes the result to the store before any
variable is changed. A later attempt that has no checkpoint yet starts with the same model, even if
another version is served by then. One that has a checkpoint continues from there.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from aerotrain.contract.errors import FinalError
from aerotrain.contract.gate import SERVING
from aerotrain.contract.job import Job, prefix_of
from aerotrain.contract.layout import MODEL, STARTED_FROM, path_segment
from aerotrain.serving.alias import served_version
from aerotrain.store import MANIFEST, CorruptError, Manifest, MissingError, Store, open_store
from aerotrain.training.checkpoints.checkpoints import Checkpoints
from aerotrain.training.checkpoints.transfer import Transfer, Variables, some
from aerotrain.training.context import TrainingContext
from aerotrain.training.model_manifest import ModelManifest


@dataclass(frozen=True, kw_only=True)
class StartingPoint:
    """A trained model: the URL of its manifest, and the URL of the checkpoint with its values."""

    model: str
    checkpoint: str

    def transfer_to(self, model: Any) -> Transfer:
        """The plan of what ``model`` takes.

        Raises:
            FinalError: it can take nothing, or the checkpoint is gone.
        """
        try:
            old = Variables.in_checkpoint(open_store(self.checkpoint))
        except MissingError as error:
            raise FinalError(
                f"the checkpoint of {self.model} is gone, so that no training can start from it: "
                f"{error}"
            ) from error
        transfer = Transfer.plan(old, Variables.of(model))
        if not transfer.taken and not transfer.by_word:
            raise FinalError(
                f"{self.model} is another model, of which no variable fits this one: it has "
                f"{some(transfer.left)}, and this one has {some(transfer.new.values())}; name "
                "another model by start_from, or leave it out"
            )
        return transfer


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
        FinalError: see ``resolve`` and ``StartingPoint.transfer_to``.
    """
    if context.is_chief:
        _decide(context)
    context.distribution.numbers([0])  # the others read what the chief has written
    record = _record(context.services.store)
    if record["model"] is None:
        return
    point = StartingPoint(model=record["model"], checkpoint=record["checkpoint"])
    transfer = point.transfer_to(context.model)
    checkpoints.take(transfer, open_store(point.checkpoint))
    transfer.print(f"starting from {point.model}")


def started_from(context: TrainingContext) -> Mapping[str, Any] | None:
    """The record of the starting point of a training; None without ``start_from``."""
    if context.arguments.start_from is None:
        return None
    return _record(context.services.store) or None


def _decide(context: TrainingContext) -> None:
    """Resolve ``start_from`` and record it, unless an earlier attempt has done it."""
    start_from = context.arguments.start_from
    assert start_from is not None
    if _record(context.services.store).get("start_from") == start_from:
        return
    point = resolve(context.replica.job, start_from)
    record: dict[str, Any] = {"start_from": start_from, "model": None, "checkpoint": None}
    if point is not None:
        transfer = point.transfer_to(context.model)
        record |= {"model": point.model, "checkpoint": point.checkpoint, **transfer.to_dict()}
    context.services.deliver(STARTED_FROM, json.dumps(record, indent=1).encode())


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
        made_of = _made_of(url)
    if isinstance(made_of, Mapping):  # the description that a checkpoint has of its variables
        return StartingPoint(model=url, checkpoint=url)
    if made_of is None:
        raise FinalError(
            f"there is no trained model, exported version or checkpoint at {url}, from "
            "which the training should start; name another by start_from"
        )
    try:
        return StartingPoint(model=made_of, checkpoint=ModelManifest.load(made_of).checkpoint)
    except MissingError as error:
        raise FinalError(
            f"the exported version {url} was made of {made_of}, which is gone, and a training "
            "starts from its checkpoint; name another by start_from"
        ) from error


def _made_of(url: str) -> Any:
    """What the manifest of a version or a checkpoint says of its model; None if there is none."""
    try:
        return Manifest.from_json(open_store(url).get(MANIFEST)).about.get("model")
    except (MissingError, CorruptError):
        return None
