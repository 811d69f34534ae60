"""Which checkpoints stay in the store: the newest, and the best."""

import json
from collections.abc import Iterable, Mapping
from typing import Any

from aerotrain.contract.errors import FinalError
from aerotrain.store import MANIFEST, Manifest, MissingError, Store

FOLDER = "checkpoints"

#: One document a checkpoint that an evaluator has measured: ``evaluations/0000000120.json``.
EVALUATIONS = "evaluations"


def sealed_checkpoints(store: Store) -> list[str]:
    """The names of the whole checkpoints of the training in ``store``, oldest first."""
    return sorted(_names(store, sealed=True))


def kept(names: Iterable[str], losses: Mapping[str, float], keep: int) -> set[str]:
    """Of checkpoints by name, the newest ``keep``, and that of the lowest loss, if one is known."""
    names = sorted(names)
    measured = [name for name in names if name in losses]
    best = min(measured, key=lambda name: losses[name], default=None)
    return {*names[-keep:], *([best] if best else [])}


class Retention:
    """Drops checkpoints in ``store`` that are neither of the newest ``keep`` nor the best.

    The best is the one of the lowest validation loss: of those that were saved where it was
    measured, and those that an evaluator has measured.
    """

    def __init__(self, store: Store, keep: int) -> None:
        self._store = store
        self._keep = keep
        #: The validation loss of each checkpoint, None where there is none.
        self._losses: dict[str, float | None] = {}
        #: Those that were found damaged: training goes on from an older one.
        self._damaged: set[str] = set()

    def doubt(self, name: str) -> None:
        """Have that checkpoint removed, which is damaged, as soon as there is a new one."""
        self._damaged.add(name)

    def name_leftovers(self) -> None:
        """Say which checkpoints never became whole."""
        for name in sorted(_names(self._store, sealed=False)):
            print(
                f"warning: the checkpoint of step {int(name)} was not uploaded to its end; it is "
                "not used",
                flush=True,
            )
            self._damaged.add(name)

    def published(self, name: str, about: Mapping[str, Any]) -> None:
        """A checkpoint of that name is whole in the store now."""
        self._damaged.discard(name)
        self._losses[name] = about.get("val_loss")

    def drop(self) -> None:
        """Remove what is damaged, and what is neither new nor best."""
        for name in self._damaged:
            self._remove(name)
        self._damaged.clear()
        names = sealed_checkpoints(self._store)
        losses = {name: loss for name in names if (loss := self._loss(name)) is not None}
        for name in set(names) - kept(names, losses, self._keep):
            self._remove(name)

    def _loss(self, name: str) -> float | None:
        if name not in self._losses:
            try:
                manifest = Manifest.from_json(self._store.get(f"{FOLDER}/{name}/{MANIFEST}"))
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

    def _remove(self, name: str) -> None:
        """Remove what was published there, its manifest first: it is never seen in part."""
        remove(self._store, f"{FOLDER}/{name}")


def remove(store: Store, prefix: str) -> None:
    """Remove a publication, its manifest first, so that it is never seen in part."""
    keys = [stored.key for stored in store.list(prefix)]
    for key in sorted(keys, key=lambda key: key != f"{prefix}/{MANIFEST}"):
        store.delete(key)


def _names(store: Store, *, sealed: bool) -> set[str]:
    parts = [stored.key.split("/") for stored in store.list(FOLDER)]
    whole = {name for _, name, *rest in parts if rest == [MANIFEST]}
    return whole if sealed else {name for _, name, *_ in parts if name.isdecimal()} - whole
