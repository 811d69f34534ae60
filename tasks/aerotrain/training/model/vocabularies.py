"""The vocabularies of a model's lookup layers, and which of its variables depend on them.

Row 5 of an embedding means the word that the lookup layer before it turns into 5. So a model can
take the table of another one only by words, where their vocabularies differ.
"""

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any, Self

import keras

from aerotrain.layers import ShardedEmbedding
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
        embeddings = [each for each in keras3.layers(reader) if _is_embedding(each)]
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


def _is_embedding(layer: Any) -> bool:
    return isinstance(layer, keras.layers.Embedding | ShardedEmbedding)


def _is_table(layer: Any, words: int) -> bool:
    """Whether ``layer`` has one variable, with a row for each of as many words."""
    return (
        type(layer) is keras.layers.Embedding  # a class of the user's own may change the numbers
        and len(layer.weights) == 1
        and layer.weights[0].shape[0] >= words
    )
