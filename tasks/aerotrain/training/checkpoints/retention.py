"""The checkpoints in the store, and which of them are kept: the newest and the best."""

import json
import re
from collections.abc import Iterable, Mapping
from typing import NamedTuple, Self

from aerotrain.contract.errors import FinalError
from aerotrain.contract.layout import CHECKPOINTS, EVALUATIONS
from aerotrain.store import MANIFEST, Manifest, Store


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
        #: Checkpoints that were found to be damaged.
        self.damaged: set[Name] = set()

    def complete(self) -> list[Name]:
        """The complete checkpoints of this training, oldest first."""
        return [name for name in complete_checkpoints(self._store) if name.token <= self._token]

    def drop(self) -> None:
        """Remove checkpoints that are damaged, cut off, or neither new nor the best.

        An upload with a token below ``token`` will never be completed.
        """
        found = [each for each in _names(self._store).items() if each[0].token <= self._token]
        cut_off = {name for name, is_whole in found if not is_whole and name.token < self._token}
        useless = cut_off | self.damaged
        for name in useless:
            remove(self._store, f"{CHECKPOINTS}/{name}")
        self.damaged.clear()
        names = [name for name, is_whole in found if is_whole and name not in useless]
        losses = {name: loss for name in names if (loss := self._loss(name)) is not None}
        for name in set(names) - kept(names, losses, self._keep):
            remove(self._store, f"{CHECKPOINTS}/{name}")

    def _loss(self, name: Name) -> float | None:
        """The validation loss of when it was saved, or the evaluator's; None without one."""
        try:
            manifest = Manifest.from_json(self._store.get(f"{CHECKPOINTS}/{name}/{MANIFEST}"))
            loss: float | None = manifest.about.get("val_loss")
            if loss is None:
                measured = json.loads(self._store.get(f"{EVALUATIONS}/{name}.json"))
                loss = measured["metrics"].get("loss")
        except FinalError:  # it is missing or damaged
            return None
        return loss


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
