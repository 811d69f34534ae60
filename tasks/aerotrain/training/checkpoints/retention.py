"""The checkpoints in the store, and which of them are kept: the newest and the best."""

import json
import re
from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple, Self

from aerotrain.contract.errors import FinalError
from aerotrain.contract.layout import CHECKPOINTS, EVALUATIONS
from aerotrain.store import MANIFEST, Manifest, MissingError, Store


class Name(NamedTuple):
    """The name of a checkpoint; the newest sorts last: ``0002-0000000120``.

    ``token`` is the fencing token under which it was saved, 0 for a version without tokens, whose
    names are the ``step`` alone. Checkpoints of a chief that lost its lease are older than all of
    its successor's, whatever their steps.
    """

    token: int
    step: int

    @classmethod
    def parse(cls, text: str) -> Self | None:
        """Parse a name that ``str`` has written; None for any other text."""
        found = re.fullmatch(r"(?:(\d+)-)?(\d+)", text)
        return found and cls(int(found[1] or 0), int(found[2]))

    def __str__(self) -> str:
        return f"{self.token:04d}-{self.step:010d}" if self.token else f"{self.step:010d}"


#: The name that stands for no checkpoint.
NOTHING = Name(0, -1)


def complete_checkpoints(store: Store) -> list[Name]:
    """The names of the complete checkpoints of the training in ``store``, oldest first."""
    return sorted(name for name, is_whole in _names(store).items() if is_whole)


def highest_token(store: Store) -> int:
    """The highest token of all checkpoints, complete or not, of the training in ``store``."""
    return max((name.token for name in _names(store)), default=0)


def kept(names: Iterable[Name], losses: Mapping[Name, float], keep: int) -> set[Name]:
    """The names of the newest ``keep`` checkpoints, and of the one with the lowest known loss."""
    names = sorted(names)
    measured = [name for name in names if name in losses]
    best = min(measured, key=lambda name: losses[name], default=None)
    return {*names[-keep:], *([best] if best else [])}


class Retention:
    """Removes checkpoints in ``store`` that are neither among the newest ``keep`` nor the best.

    The best has the lowest validation loss, measured when it was saved or by an evaluator.
    Checkpoints with a token above ``token`` are a successor's: they are neither counted nor
    removed.
    """

    def __init__(self, store: Store, keep: int, token: int) -> None:
        self._store = store
        self._keep = keep
        self._token = token
        #: The validation loss of each checkpoint, None if there is none.
        self._losses: dict[Name, float | None] = {}
        #: Damaged checkpoints: training resumes from an older one.
        self._damaged: set[Name] = set()

    def complete(self) -> list[Name]:
        """The complete checkpoints of this training, oldest first."""
        return [name for name in complete_checkpoints(self._store) if name.token <= self._token]

    def mark_damaged(self, name: Name) -> None:
        """Mark a damaged checkpoint, to be removed as soon as there is a new one."""
        self._damaged.add(name)

    def warn_of_incomplete(self) -> None:
        """Warn of checkpoints that were not completely uploaded."""
        for name, is_whole in sorted(_names(self._store).items()):
            if is_whole or name.token > self._token:
                continue
            print(
                f"warning: the checkpoint of step {name.step} was not uploaded to its end; it is "
                "not used",
                flush=True,
            )
            self._damaged.add(name)

    def published(self, name: Name, about: Mapping[str, Any]) -> None:
        """Record that the checkpoint of that name is complete in the store."""
        self._damaged.discard(name)
        self._losses[name] = about.get("val_loss")

    def drop(self) -> None:
        """Remove damaged checkpoints, and those that are neither new nor the best."""
        for name in self._damaged:
            remove(self._store, f"{CHECKPOINTS}/{name}")
        self._damaged.clear()
        names = self.complete()
        losses = {name: loss for name in names if (loss := self._loss(name)) is not None}
        for name in set(names) - kept(names, losses, self._keep):
            remove(self._store, f"{CHECKPOINTS}/{name}")

    def _loss(self, name: Name) -> float | None:
        if name not in self._losses:
            try:
                manifest = Manifest.from_json(self._store.get(f"{CHECKPOINTS}/{name}/{MANIFEST}"))
            except FinalError:
                return None
            self._losses[name] = manifest.about.get("val_loss")
        if self._losses[name] is None:
            try:
                measured = json.loads(self._store.get(f"{EVALUATIONS}/{name}.json"))
            except MissingError:
                return None
            self._losses[name] = measured["metrics"].get("loss")
        return self._losses[name]


def remove(store: Store, prefix: str) -> None:
    """Remove a publication, its manifest first, so that it is never visible in part."""
    keys = [stored.key for stored in store.list(prefix)]
    for key in sorted(keys, key=lambda key: key != f"{prefix}/{MANIFEST}"):
        store.delete(key)


def _names(store: Store) -> dict[Name, bool]:
    """The names of all checkpoints in ``store``, and whether each is complete."""
    found: dict[Name, bool] = {}
    for stored in store.list(CHECKPOINTS):
        _, text, *rest = stored.key.split("/")
        if (name := Name.parse(text)) is not None:
            found[name] = found.get(name, False) or rest == [MANIFEST]
    return found
