"""What an exported model takes and returns."""

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from keyword import iskeyword
from typing import Any, Self

import tensorflow as tf
from tensorflow.core.protobuf import saved_model_pb2

from aerotrain.contract.errors import FinalError, nearest
from aerotrain.data.dataset import Feature, Schema

#: The file of a SavedModel with its signatures, and the one that takes features.
FILE, SIGNATURE = "saved_model.pb", "serving_default"

#: The names of inputs that a signature keeps wherever it has them: those of Python's parameters.
_SIGNATURE_NAME = re.compile(r"[A-Za-z][A-Za-z0-9_]*")

#: Inputs or outputs by name, each ``(records, *shape)``.
Arrays = Mapping[str, Any]


@dataclass(frozen=True)
class Signature:
    """The signature ``serving_default``: the features of inputs and outputs by name.

    ``model`` says in messages which model it is. A dimension of -1 is of any size.
    """

    model: str
    inputs: Schema
    outputs: Schema

    @classmethod
    def parse(cls, model: str, content: bytes) -> Self:
        """The signature in the file ``saved_model.pb``, which need not be loaded.

        Raises:
            FinalError: it is no SavedModel with such a signature.
        """
        saved = saved_model_pb2.SavedModel()
        try:
            saved.ParseFromString(content)
            found = saved.meta_graphs[0].signature_def[SIGNATURE]
        except Exception as error:
            raise FinalError(f"{model} is no SavedModel: {error}; export it again") from error
        if not found.inputs:
            raise FinalError(f"{model} has no signature {SIGNATURE!r}; export it again")
        return cls(model, _features(found.inputs), _features(found.outputs))

    def columns(self, schema: Schema) -> dict[str, str]:
        """The column of each input in data with this schema.

        Raises:
            FinalError: a column is missing, or has another shape.
        """
        by_input = {name: column for column, name in input_names(schema).items()}
        found = {}
        for name, feature in self.inputs.items():
            column = by_input.get(name)
            if column is None:
                raise FinalError(
                    f"{self.model} needs the input {name!r}, and the data has no such column"
                    f"{nearest(name, schema)}; it has {', '.join(sorted(schema))}. Add the column, "
                    "or name another model"
                )
            if not fits(schema[column].shape, feature.shape):
                raise FinalError(
                    f"{self.model} takes {column!r} as {feature}, and the data has "
                    f"{schema[column]}; name another model"
                )
            found[name] = column
        return found


def _features(tensors: Mapping[str, Any]) -> dict[str, Feature]:
    """The features of tensors ``(batch, *shape)``, by name."""
    found = {}
    for name, tensor in sorted(tensors.items()):
        shape = tuple(each.size for each in tensor.tensor_shape.dim[1:])
        found[name] = Feature(tf.as_dtype(tensor.dtype).name, shape)
    return found


def loaded_inputs(loaded: Any) -> Schema:
    """The inputs of a signature of a SavedModel that is loaded."""
    return {
        name: Feature(spec.dtype.name, tuple(-1 if n is None else n for n in spec.shape[1:]))
        for name, spec in loaded.structured_input_signature[1].items()
    }


def fits(shape: tuple[int, ...], expected: tuple[int, ...]) -> bool:
    """Whether a shape is ``expected``, in which -1 is any size."""
    return len(shape) == len(expected) and all(
        size in (-1, found) for found, size in zip(shape, expected, strict=True)
    )


def input_names(features: Iterable[str]) -> dict[str, str]:
    """The input of ``serving_default`` for each feature.

    It has the feature's name, in which underscores replace what a signature does not accept, such
    as spaces, dashes and letters that are not ASCII; ``x`` precedes another first character than a
    letter, and an underscore follows a keyword of Python. Names that are then alike, but for their
    case, are numbered: ``unit-price`` and ``unit_price`` are ``unit_price_1`` and ``unit_price``.
    """
    names: dict[str, str] = {}
    taken = set()
    for feature in sorted(features, key=lambda each: (not _is_signature_name(each), each)):
        stem = re.sub(r"[^A-Za-z0-9_]", "_", feature)
        stem = stem if _SIGNATURE_NAME.fullmatch(stem) else f"x{stem}"
        stem = stem if _is_signature_name(stem) else f"{stem}_"
        name, number = stem, 0
        while name.lower() in taken:  # TensorFlow's operations differ by more than case
            number += 1
            name = f"{stem}_{number}"
        names[feature] = name
        taken.add(name.lower())
    return names


def _is_signature_name(name: str) -> bool:
    return bool(_SIGNATURE_NAME.fullmatch(name)) and not iskeyword(name.lower())


def by_name(outputs: Any) -> Mapping[str, tf.Tensor]:
    """A model's outputs by the names that the signature gives them."""
    if isinstance(outputs, Mapping):
        return {name: outputs[name] for name in sorted(outputs)}
    if isinstance(outputs, list | tuple):
        return {f"output_{index}": each for index, each in enumerate(outputs)}
    return {"predictions": outputs}
