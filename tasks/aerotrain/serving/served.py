"""An exported model as a serving system loads it: from columns to predictions, without Keras."""

from collections.abc import Callable, Collection
from pathlib import Path
from typing import Any, Self

import tensorflow as tf

from aerotrain.contract.errors import FinalError, nearest
from aerotrain.contract.steps import Format
from aerotrain.data.dataset import Schema
from aerotrain.serving.formats import predictor
from aerotrain.serving.servable import Features, Outputs
from aerotrain.serving.signature import SIGNATURE, Arrays, Signature, by_name, loaded_inputs
from aerotrain.store import CorruptError, MissingError, StoreRefused, fetch, open_store


class Served:
    """The signature ``serving_default`` of an exported model, for the columns of a data set.

    ``title`` says in messages which model it is. Of the formats in ``folder``, the one that
    ``model_format`` names is run.

    Raises:
        FinalError: it cannot be loaded, or needs a column that the data set does not have.
    """

    def __init__(
        self, title: str, folder: Path, schema: Schema, model_format: Format = Format.SAVEDMODEL
    ) -> None:
        self.title = title
        try:
            # Kept, because its functions do not keep its variables.
            self._loaded = tf.saved_model.load(str(folder))
            self._signature = self._loaded.signatures[SIGNATURE]
        except (OSError, KeyError, ValueError, tf.errors.OpError) as error:
            raise FinalError(
                f"{title} cannot be loaded: {error}; export it again, or name another"
            ) from error
        inputs = loaded_inputs(self._signature)
        self._columns = Signature(title, inputs, {}).columns(schema)
        for name, column in self._columns.items():
            if schema[column].dtype != inputs[name].dtype:
                raise FinalError(
                    f"{title} takes {column!r} as {inputs[name]}, and the data has "
                    f"{schema[column]}; name another model"
                )
        self._function: Callable[..., Outputs] = self._signature
        if model_format != Format.SAVEDMODEL:
            if not (file := folder / model_format.file).exists():
                raise FinalError(
                    f"{title} has no {model_format}: export it with formats=['{model_format}']"
                )
            self._function = self._in_runtime(predictor(model_format, file))

    @classmethod
    def fetched(
        cls,
        url: str,
        folder: Path,
        schema: Schema,
        *,
        role: str,
        model_format: Format = Format.SAVEDMODEL,
    ) -> Self:
        """The model at ``url`` of a store, downloaded into ``folder``; messages call it ``role``.

        Raises:
            FinalError: it is not there or not complete, or see the class.
        """
        parent, _, version = url.rstrip("/").rpartition("/")
        title = f"{role} {url}"
        try:
            fetch(open_store(parent), version, folder)
        except (MissingError, CorruptError, StoreRefused) as error:
            raise FinalError(f"{title} cannot be loaded: {error}") from error
        return cls(title, folder, schema, model_format)

    @property
    def columns(self) -> Collection[str]:
        """The columns that it needs."""
        return self._columns.values()

    def predict(self, features: Features) -> Outputs:
        """The outputs by name for a batch of the features ``columns``."""
        return dict(self._function(**{n: features[c] for n, c in self._columns.items()}))

    def _in_runtime(self, model: Callable[[Arrays], Arrays]) -> Callable[..., Outputs]:
        """A function like the signature, which runs the model of another format."""
        outputs = self._signature.structured_outputs
        dtypes = [each.dtype for each in outputs.values()]

        def predict(**inputs: tf.Tensor) -> Outputs:
            def run(*values: Any) -> list[Any]:
                found = model(dict(zip(inputs, values, strict=True)))
                return [found[name] for name in outputs]

            found = tf.numpy_function(run, [*inputs.values()], dtypes, stateful=False)
            for value, expected in zip(found, outputs.values(), strict=True):
                value.set_shape(expected.shape)
            return dict(zip(outputs, found, strict=True))

        return predict

    def like(self, outputs: Outputs, structure: Any) -> Any:
        """The outputs in the structure of another model's predictions.

        Raises:
            FinalError: an output is missing, or has another shape.
        """
        named = by_name(structure)
        for name, value in named.items():
            if name not in outputs:
                raise FinalError(
                    f"{self.title} has no output {name!r}{nearest(name, outputs)}; it "
                    f"has {', '.join(outputs)}"
                )
            theirs, ours = outputs[name].shape[1:], value.shape[1:]
            if not theirs.is_compatible_with(ours):
                raise FinalError(
                    f"the output {name!r} of {self.title} has shape {tuple(theirs)} and "
                    f"that of the model {tuple(ours)}: they have other classes, and cannot be "
                    "compared; name another baseline"
                )
        return tf.nest.pack_sequence_as(structure, [outputs[name] for name in named])
