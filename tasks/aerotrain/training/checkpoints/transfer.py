"""The plan of a transfer: which variables get values from the checkpoint of another model."""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Self

import keras

from aerotrain.contract.errors import counted
from aerotrain.contract.layout import VOCABULARIES
from aerotrain.store import MANIFEST, Manifest, Store
from aerotrain.training.checkpoints.metadata import model_config
from aerotrain.training.model.vocabularies import Vocabularies, vocabularies_of

#: The most variables that a line names.
_NAMED = 8

Shape = tuple[int, ...]


@dataclass(frozen=True, kw_only=True)
class Variables:
    """The variables of a model: each path's shape and place in a checkpoint; the vocabularies.

    ``ambiguous`` are the paths that several variables have.
    """

    shapes: Mapping[str, Shape]
    places: Mapping[str, int]
    ambiguous: frozenset[str]
    vocabularies: Vocabularies

    @classmethod
    def of(cls, model: keras.Model) -> Self:
        """The variables of a model in this process."""
        return cls._of(model_config(model), vocabularies_of(model))

    @classmethod
    def in_checkpoint(cls, store: Store) -> Self:
        """The variables in the checkpoint in ``store``, of which no value is read.

        Raises:
            MissingError: there is no checkpoint.
        """
        manifest = Manifest.from_json(store.get(MANIFEST))
        has_words = VOCABULARIES in manifest.files
        words = Vocabularies.from_json(store.get(VOCABULARIES)) if has_words else Vocabularies()
        return cls._of(manifest.about["model"], words)

    @classmethod
    def _of(cls, config: Mapping[str, Any], vocabularies: Vocabularies) -> Self:
        paths = [path for path, _ in config["variables"]]
        return cls(
            shapes={path: tuple(shape) for path, shape in config["variables"]},
            places=dict(zip(paths, config["places"], strict=True)),
            ambiguous=frozenset(path for path, count in Counter(paths).items() if count > 1),
            vocabularies=vocabularies,
        )


@dataclass(frozen=True, kw_only=True)
class TransferredRows:
    """The rows of a table that are taken by word: row ``old[i]`` of ``shape`` becomes ``new[i]``.

    ``words`` is the number of words of the new vocabulary.
    """

    place: int
    shape: Shape
    old: Sequence[int]
    new: Sequence[int]
    words: int


@dataclass(frozen=True, kw_only=True)
class Transfer:
    """Which variables get values from a checkpoint.

    ``taken`` has the place in the checkpoint of each variable that is taken as it is, by its path,
    and ``by_word`` the tables of which rows are taken. ``new`` are the variables that keep their
    initial values, each with the reason, and ``left`` those of the checkpoint that none takes.
    """

    taken: Mapping[str, int]
    by_word: Mapping[str, TransferredRows]
    new: Mapping[str, str]
    left: Sequence[str]

    @classmethod
    def plan(cls, old: Variables, new: Variables) -> Self:
        """The transfer of ``old`` variables of a checkpoint to the ``new`` ones of a model."""
        taken, by_word, reasons = {}, {}, {}
        for path, shape in new.shapes.items():
            reason = _reason(path, old, new)
            if not reason:
                taken[path] = old.places[path]
            elif rows := _rows(path, old, new):
                by_word[path] = rows
            else:
                reasons[path] = f"{path} {shape}{reason}"
        left = [
            f"{path} {shape}"
            for path, shape in old.shapes.items()
            if path not in taken and path not in by_word
        ]
        return cls(taken=taken, by_word=by_word, new=reasons, left=left)

    @property
    def is_empty(self) -> bool:
        return not self.taken and not self.by_word

    def to_dict(self) -> dict[str, Any]:
        """The lists, for people who read a manifest."""
        return {
            "taken": list(self.taken),
            "by_word": self._by_word(),
            "new": list(self.new.values()),
            "left": list(self.left),
        }

    def print(self, title: str) -> None:
        """Print the lists under ``title``, each in one line."""
        print(title)
        print(f"  taken: {counted(len(self.taken), 'variable')}", flush=True)
        lists = (
            ("taken by word", self._by_word()),
            ("new", self.new.values()),
            ("left", self.left),
        )
        for what, names in lists:
            if names:
                print(f"  {what}: {some(names)}", flush=True)

    def _by_word(self) -> list[str]:
        return [
            f"{path}, {len(rows.new)} of {counted(rows.words, 'word')}"
            for path, rows in self.by_word.items()
        ]


def _reason(path: str, old: Variables, new: Variables) -> str:
    """Why a variable cannot be taken as it is; empty if it can."""
    if path in old.ambiguous | new.ambiguous:
        return ": several variables have this path"
    if path not in old.shapes:
        return ": there is no such path"
    if old.shapes[path] != new.shapes[path]:
        return f": its shape was {old.shapes[path]}"
    if old.vocabularies.of(path) != new.vocabularies.of(path):
        return ": its vocabulary was another one"
    return ""


def _rows(path: str, old: Variables, new: Variables) -> TransferredRows | None:
    """The rows of the words that both tables of that path have; None if it is not known."""
    was, now = old.vocabularies, new.vocabularies
    if path in old.ambiguous | new.ambiguous or not (path in was.tables and path in now.tables):
        return None
    if old.shapes[path][1:] != new.shapes[path][1:]:
        return None
    before, after = (_numbers(each.words[each.tables[path]]) for each in (was, now))
    known = [word for word in after if word in before]
    if not known:
        return None
    return TransferredRows(
        place=old.places[path],
        shape=old.shapes[path],
        old=[before[word] for word in known],
        new=[after[word] for word in known],
        words=len(after),
    )


def _numbers(words: Sequence[str]) -> dict[tuple[str, int], int]:
    """The number of each word; of those that are there several times, such as [UNK], by turn."""
    seen: Counter[str] = Counter()
    numbers = {}
    for number, word in enumerate(words):
        numbers[word, seen[word]] = number
        seen[word] += 1
    return numbers


def some(names: Iterable[str]) -> str:
    """The first names, and how many more there are."""
    names = list(names)
    more = len(names) - _NAMED
    return "; ".join(names[:_NAMED]) + (f"; and {more} more" if more > 0 else "")
