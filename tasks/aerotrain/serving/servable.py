"""A trained model as a SavedModel that loads without Keras and without this project."""

from collections.abc import Mapping, Sequence
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import keras
import tensorflow as tf

from aerotrain.contract.errors import FinalError
from aerotrain.data.dataset import Schema
from aerotrain.serving.signature import by_name, input_names
from aerotrain.serving.verify import close, write_part
from aerotrain.training.input.batches import Transform, parse
from aerotrain.training.internals import keras3, tensorflow2
from aerotrain.training.model.keras_adapter import KERAS

#: The accepted difference of predictions, absolute or relative, by the compute dtype of layers: the
#: exported model fuses other operations, and sums of rounded numbers depend on their order.
TOLERANCES = {"bfloat16": 0.05, "float16": 0.005}
_TOLERANCE = 1e-5

Features = Mapping[str, tf.Tensor]
Outputs = dict[str, tf.Tensor]


class Servable:
    """A model with its transform: from raw features to predictions by name.

    ``needed`` are the features on which the predictions depend. Features that only the label and
    sample weights depend on are excluded, because they are not known when predictions are
    requested. The transform gets those of ``record`` instead, a serialized one: it may accept only
    some values, as a label has a vocabulary. ``nulls`` are the source's words for a missing value:
    in a request, too, a text that is one of them is empty, as ``prepare`` stores it.
    """

    def __init__(
        self,
        model: keras.Model,
        transform: Transform,
        schema: Schema,
        record: tf.Tensor | None = None,
        nulls: Sequence[str] = (),
    ) -> None:
        self._model = model
        self._nulls = [word.encode() for word in nulls]
        self.transform = transform
        self._schema = schema
        #: The tables that the transform has made in graphs.
        self._tables: list[Any] = []
        self._known = {} if record is None else parse(record[None], schema)
        self._graph = tf.function(self.predict).get_concrete_function(_specs(schema)).graph
        self.needed = self._reaching_predictions()

    def predict(self, features: Features) -> Outputs:
        """The model's outputs for a batch of all features; a single one is ``predictions``."""
        with nullcontext() if tf.executing_eagerly() else tensorflow2.tables_kept(self._tables):
            transformed = self.transform(dict(features))
        x, _, _ = keras.utils.unpack_x_y_sample_weight(transformed)
        given = KERAS.predict(self._model, x)
        return {name: tf.convert_to_tensor(value) for name, value in by_name(given).items()}

    @property
    def tolerance(self) -> float:
        """The accepted difference of predictions, absolute or relative."""
        dtypes = {layer.compute_dtype for layer in keras3.layers(self._model)}
        return max(TOLERANCES.get(dtype, _TOLERANCE) for dtype in dtypes)

    def save(self, folder: Path) -> None:
        """Write a SavedModel with two signatures.

        ``serving_default`` takes a batch of each needed feature, ``(batch, *shape)`` in the data
        set's dtype, by its name of ``input_names``. ``serialized_examples`` takes ``examples``, a
        vector of serialized ``tf.train.Example`` with these features.
        """
        names = input_names(self.needed)

        def serving_default(inputs: Features) -> Outputs:
            features = {name: inputs[names[name]] for name in self.needed}
            return self.predict(self._completed(features))

        def serialized_examples(examples: tf.Tensor) -> Outputs:
            return self.predict(self._completed(parse(examples, self.needed)))

        examples = tf.TensorSpec([None], tf.string, name="examples")
        inputs = {names[name]: each for name, each in _specs(self.needed).items()}
        given = ((serving_default, inputs), (serialized_examples, examples))
        signatures = {
            function.__name__: tf.function(function, [spec]).get_concrete_function()
            for function, spec in given
        }
        module = tf.Module()
        # Only the variables: with the model itself, Keras's own format would be written, too.
        module.variables_of_model = KERAS.variables(self._model)
        module.tables = self._owners(*(each.graph for each in signatures.values()))
        tf.saved_model.save(module, str(folder), signatures=signatures)

    def save_check(self, examples: tf.Tensor, file: Path) -> None:
        """Write what ``verify.py`` compares: real records, and their expected predictions.

        The predictions are those of the trained model, not of the exported one. Random numbers are
        drawn from the seeds that ``save`` has written.

        Raises:
            FinalError: predictions for the same records differ from call to call.
        """
        features = parse(examples, self._schema)
        tolerance = self.tolerance
        outputs, again = (self.outputs(features) for _ in range(2))
        differing = [name for name in outputs if not close(again[name], outputs[name], tolerance)]
        if differing:
            raise FinalError(
                f"predictions ({', '.join(differing)}) for the same records differ from call to "
                "call, so the export cannot be verified, and nothing was published: draw random "
                "numbers by keras.random with a SeedGenerator, whose state is exported, or in "
                "training only, and keep state in TensorFlow's variables"
            )
        given = {"examples": examples.numpy(), "inputs": self.inputs(examples)}
        write_part(file, **given, outputs=outputs, tolerance=tolerance)

    def inputs(self, examples: tf.Tensor) -> dict[str, Any]:
        """The inputs of the signature for real records, as arrays by name."""
        features = parse(examples, self._schema)
        names = input_names(self.needed)
        return {given: features[name].numpy() for name, given in names.items()}

    def outputs(self, features: Features) -> dict[str, Any]:
        """The predictions as arrays; states that they change, as seeds, keep their values."""
        owners = [each for each in self._owners() if isinstance(each, tf.Variable)]
        before = [(each, each.numpy()) for each in owners if not each.trainable]
        outputs = self.predict(features)
        for variable, value in before:
            variable.assign(value)
        return {name: value.numpy() for name, value in outputs.items()}

    def _completed(self, features: Features) -> Features:
        """``features``, and those of one record that only labels and sample weights depend on."""
        batch = tf.shape(next(iter(features.values())))[:1]
        features = {name: self._without_nulls(each) for name, each in features.items()}
        others = {
            name: tf.broadcast_to(
                self._known.get(name, tf.zeros([1, *each.shape], each.dtype)),
                tf.concat([batch, each.shape], 0),
            )
            for name, each in self._schema.items()
            if name not in features
        }
        return {**features, **others}

    def _without_nulls(self, values: tf.Tensor) -> tf.Tensor:
        if values.dtype != tf.string or not self._nulls:
            return values
        return tf.where(tf.reduce_any(values[..., tf.newaxis] == self._nulls, -1), "", values)

    def _owners(self, *others: Any) -> list[Any]:
        """The variables and tables, such as the vocabulary of a layer, that predictions read.

        ``others`` are further graphs of predictions: a transform may make a table in each.
        """
        captured = [each for graph in (self._graph, *others) for each in graph.external_captures]
        handles = [each for each in captured if each.dtype == tf.resource]
        owners = [owner for each in handles if (owner := tensorflow2.owner_of(each)) is not None]
        return list({id(each): each for each in owners}.values())

    def _reaching_predictions(self) -> Schema:
        """The features from which the graph has a path to the predictions."""
        reached = set()
        ahead = [output.op for output in self._graph.outputs]
        while ahead:
            operation = ahead.pop()
            if operation.name not in reached:
                reached.add(operation.name)
                ahead += [each.op for each in operation.inputs]
        # TensorFlow sorts the features; the captured variables follow them.
        features = zip(sorted(self._schema), self._graph.inputs, strict=False)
        names = [name for name, tensor in features if tensor.op.name in reached]
        if not names:
            raise FinalError(
                f"the predictions depend on none of the features {', '.join(self._schema)}; "
                "see what transform returns as x"
            )
        return {name: self._schema[name] for name in names}


def _specs(schema: Schema) -> dict[str, Any]:
    """The spec of a batch of each feature, with a name that an operation can have."""
    names = input_names(schema)
    return {
        name: tf.TensorSpec([None, *feature.shape], feature.dtype, name=names[name])
        for name, feature in schema.items()
    }
