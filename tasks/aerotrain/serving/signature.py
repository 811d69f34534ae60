"""What an exported model takes and returns, read from its SavedModel without loading it."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Self

import tensorflow as tf
from tensorflow.core.protobuf import saved_model_pb2

from aerotrain.contract.errors import FinalError, nearest
from aerotrain.data.dataset import Feature, Schema
from aerotrain.serving.servable import input_names

#: The file of a SavedModel with its signatures.
FILE = "saved_model.pb"


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
        """The signature in the file ``saved_model.pb``.

        Raises:
            FinalError: it is no SavedModel with such a signature.
        """
        saved = saved_model_pb2.SavedModel()
        try:
            saved.ParseFromString(content)
            found = saved.meta_graphs[0].signature_def["serving_default"]
        except Exception as error:
            raise FinalError(f"{model} is no SavedModel: {error}; export it again") from error
        if not found.inputs:
            raise FinalError(f"{model} has no signature 'serving_default'; export it again")
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
            if not _fits(schema[column].shape, feature.shape):
                raise FinalError(
                    f"{self.model} takes {column!r} as {feature}, and the data has "
                    f"{schema[column]}; name another model"
                )
            found[name] = column
        return found


def _features(tensors: Mapping[str, Any]) -> dict[str, Feature]:
    """The features of tensors ``(batch, *shape)``, by name."""
    return {
        name: Feature(
            tf.as_dtype(tensors[name].dtype).name,
            tuple(each.size for each in tensors[name].tensor_shape.dim[1:]),
        )
        for name in sorted(tensors)
    }


def _fits(shape: tuple[int, ...], expected: tuple[int, ...]) -> bool:
    return len(shape) == len(expected) and all(
        size in (-1, found) for found, size in zip(shape, expected, strict=True)
    )
