"""The plan of a transfer: which variables get values from the checkpoint of another model.

Row 5 of an embedding means the word that the lookup layer before it turns into 5. So a model can
take the table of another one only by words, where their vocabularies differ.
"""

import json
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any, Self

import keras

from aerotrain.contract.errors import counted
from aerotrain.contract.layout import VOCABULARIES
from aerotrain.layers import ShardedEmbedding
from aerotrain.store import MANIFEST, Manifest, Store
from aerotrain.training.checkpoints.metadata import model_config
from aerotrain.training.internals import keras3

_LOOKUPS = (
    keras.layers.StringLookup,
    keras.layers.IntegerLookup,
    keras.layers.TextVectorization,
)


@dataclass(frozen=True, kw_only=True)
class Vocabularies:
    """The ``words`` of each vocabulary, in the order of their numbers.

    ``tables`` has the number of the vocabulary of each variable, by its path, whose row of a number
    belongs to the word of that number. ``others`` has the numbers of all vocabularies on which a
    variable depends in another way, or in one that is not known.
    """

    words: Sequence[Sequence[str]] = ()
    tables: Mapping[str, int] = field(default_factory=dict)
    others: Mapping[str, Sequence[int]] = field(default_factory=dict)

    def to_json(self) -> bytes:
        return json.dumps(asdict(self)).encode()

    @classmethod
    def from_json(cls, text: bytes) -> Self:
        """Read what ``to_json`` has written."""
        return cls(**json.loads(text))

    def of(self, path: str) -> list[Sequence[str]]:
        """The words of each vocabulary on which the variable of that path depends."""
        numbers = [self.tables[path]] if path in self.tables else self.others.get(path, ())
        return [self.words[each] for each in numbers]


def vocabularies_of(model: Any) -> Vocabularies:
    """The vocabularies of ``model``, whose variables must exist.

    The table of a vocabulary is that of an Embedding which takes the output of its lookup layer in
    a functional or sequential model. Any other layer that may get words as numbers depends on their
    vocabularies in a way that is not known; if there are embeddings in it, only they do.
    """
    lookups = _lookups_in(model)
    words = [[str(word) for word in each.get_vocabulary()] for each in lookups]
    tables: dict[str, int] = {}
    others: dict[str, set[int]] = {}
    for reader, before, is_direct in _readers(model):
        numbers = [lookups.index(each) for each in before]
        first = numbers[0]
        same = all(words[each] == words[first] for each in numbers)
        if is_direct and same and _is_table(reader, len(words[first])):
            tables[reader.weights[0].path] = first
            continue
        kinds = (keras.layers.Embedding, ShardedEmbedding)
        embeddings = [each for each in keras3.layers(reader) if isinstance(each, kinds)]
        for each in embeddings or [reader]:
            for variable in each.weights:
                others.setdefault(variable.path, set()).update(numbers)
    return Vocabularies(
        words=words,
        tables={path: number for path, number in tables.items() if path not in others},
        others={path: sorted(numbers) for path, numbers in others.items()},
    )


def _lookups_in(layer: Any) -> list[Any]:
    """The lookup layers in ``layer``, or itself, without those that are parts of another one."""
    if isinstance(layer, _LOOKUPS):
        return [layer]
    found = [each for each in _layers(layer) if isinstance(each, _LOOKUPS)]
    parts = {part for each in found for part in _layers(each) if part is not each}
    return [each for each in found if each not in parts]


def _layers(operation: Any) -> list[Any]:
    """The layer and all layers in it; none for an operation that is no layer."""
    return keras3.layers(operation) if isinstance(operation, keras.layers.Layer) else []


def _readers(layer: Any) -> Iterator[tuple[Any, list[Any], bool]]:
    """The first layers with variables after a lookup layer, at any depth in ``layer``.

    Each comes with the lookup layers before it, and whether it takes nothing but their outputs.
    """
    graph = keras3.graph_of(layer)
    if graph is None:
        if (inside := _lookups_in(layer)) and _has_weights(layer):
            yield layer, inside, False
        return
    for each, parents in graph.items():
        if _has_weights(each):
            if before := _lookups_before(each, graph):
                yield each, before, all(isinstance(parent, _LOOKUPS) for parent in parents)
            yield from _readers(each)


def _lookups_before(layer: Any, graph: Mapping[Any, Sequence[Any]]) -> list[Any]:
    """The lookup layers whose outputs ``layer`` gets by way of layers without variables."""
    found: dict[Any, None] = {}
    passed: set[Any] = set()
    ahead = list(graph[layer])
    while ahead:
        parent = ahead.pop()
        if parent not in passed and not _has_weights(parent):
            passed.add(parent)
            found |= dict.fromkeys(_lookups_in(parent))
            ahead += graph[parent]
    return list(found)


def _has_weights(operation: Any) -> bool:
    return bool(getattr(operation, "weights", ()))


def _is_table(layer: Any, words: int) -> bool:
    """Whether ``layer`` has one variable, with a row for each of as many words."""
    return (
        type(layer) is keras.layers.Embedding  # a class of the user's own may change the numbers
        and len(layer.weights) == 1
        and layer.weights[0].shape[0] >= words
    )


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

    def to_dict(self) -> dict[str, list[str]]:
        """The lists, for people who read a manifest."""
        return {
            "taken": list(self.taken),
            "by_word": [
                f"{path}, {len(rows.new)} of {counted(rows.words, 'word')}"
                for path, rows in self.by_word.items()
            ],
            "new": list(self.new.values()),
            "left": list(self.left),
        }

    def print(self, title: str) -> None:
        """Print the lists under ``title``, each in one line."""
        taken, *lists = self.to_dict().values()
        print(title)
        print(f"  taken: {counted(len(taken), 'variable')}", flush=True)
        for what, names in zip(("taken by word", "new", "left"), lists, strict=True):
            if names:
                print(f"  {what}: {some(names)}", flush=True)


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
