"""Models of tf_keras, which is Keras 2, adapted to the loop for Keras 3.

Imported only if TF_USE_LEGACY_KERAS is set, see ``aerotrain.training.model.keras_adapter``.

The metrics of tf_keras have no stateless scope. While a step is traced, their variables are
replaced by ``Held`` values, which behave like variables and become the sums.
"""

import operator
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from aerotrain.contract.errors import FinalError
from aerotrain.contract.training import TrainArguments
from aerotrain.training.model.keras_adapter import KerasAdapter, check_has_weights
from aerotrain.training.steps.state import MetricState, MetricValues, numbers
from aerotrain.training.steps.step import Counts, TrainStep

try:
    import tf_keras

    from aerotrain.training.internals import keras2
except ModuleNotFoundError as error:
    raise FinalError(
        "TF_USE_LEGACY_KERAS asks for tf_keras, and it is not installed; install aerotrain's "
        "extra 'legacy', or leave the variable out"
    ) from error

#: The strategies that are tested to train tf_keras models as one device does.
STRATEGIES = ("one_device", "mirrored", "multi_worker_mirrored", "parameter_server")


class Held:
    """A value that replaces a metric's variable. An assignment changes the value it holds."""

    def __init__(self, variable: tf.Variable, value: Any) -> None:
        self.dtype, self.shape, self.name = variable.dtype, variable.shape, variable.name
        self.now: tf.Tensor = tf.convert_to_tensor(value, variable.dtype)

    def assign(self, value: Any, **_: Any) -> tf.Tensor:
        self.now = tf.ensure_shape(tf.cast(value, self.dtype), self.shape)
        return self.now

    def assign_add(self, value: Any, **_: Any) -> tf.Tensor:
        return self.assign(self.now + tf.cast(value, self.dtype))

    def assign_sub(self, value: Any, **_: Any) -> tf.Tensor:
        return self.assign(self.now - tf.cast(value, self.dtype))

    def read_value(self) -> tf.Tensor:
        return self.now

    value = read_value

    def __getitem__(self, item: Any) -> tf.Tensor:
        return self.now[item]


def _operating(operate: Callable[[Any, Any], Any], *, swapped: bool = False) -> Any:
    def operated(held: Held, other: Any) -> Any:
        return operate(other, held.now) if swapped else operate(held.now, other)

    return operated


for _name in ("add", "sub", "mul", "truediv", "gt", "ge", "lt", "le"):
    setattr(Held, f"__{_name}__", _operating(getattr(operator, _name)))
for _name in ("add", "sub", "mul", "truediv"):
    setattr(Held, f"__r{_name}__", _operating(getattr(operator, _name), swapped=True))

tf.register_tensor_conversion_function(
    Held, lambda held, dtype=None, name=None, as_ref=False: held.now
)


class LegacyMetricState(MetricState):
    """The metrics of a tf_keras model, including the mean loss, as values.

    Raises:
        FinalError: a metric keeps a variable somewhere else than in an attribute.
    """

    def __init__(self, model: Any) -> None:
        self.model = model
        self.metrics = list(model.metrics)
        self.in_call = False
        self.by_batch = set()  # every loss counts by the size of its batch
        #: The place of each variable: its object, the attribute, and the variable.
        self._places: list[tuple[Any, str, tf.Variable]] = []
        for metric in model.metrics:
            metric.reset_state()
            self._places += _places(metric)
        self.variables = [variable for _, _, variable in self._places]
        self.zero = [*(np.asarray(each.numpy()) for each in self.variables), np.zeros(2)]

    @contextmanager
    def holding(self, sums: MetricValues) -> Iterator[list[Held]]:
        """A context in which the metrics read and update ``sums``, through the yielded values."""
        held = [Held(*pair) for pair in zip(self.variables, sums, strict=False)]
        self._put(held)
        try:
            yield held
        finally:
            self._put(self.variables)

    def results(self, sums: MetricValues) -> dict[str, float]:
        with self.holding(sums):
            return numbers(self.model.get_metrics_result())

    def _put(self, values: Sequence[Any]) -> None:
        for (owner, name, _), value in zip(self._places, values, strict=True):
            # Bypasses tf_keras's own __setattr__, which would track the value.
            object.__setattr__(owner, name, value)


def _places(metric: Any) -> list[tuple[Any, str, tf.Variable]]:
    places = [
        (owner, name, value)
        for owner in keras2.parts(metric)
        for name, value in sorted(vars(owner).items())
        if any(value is weight for weight in metric.weights)  # variables have no usable equality
    ]
    if len(places) != len(metric.weights):
        raise FinalError(
            f"the metric {metric.name!r} of {type(metric).__name__} keeps its variables in a list "
            "or a dict; give each an attribute of its own, or use a Keras 3 model"
        )
    return places


class LegacyStep(TrainStep):
    """One step of one replica for a tf_keras model, to be called through ``strategy.run``."""

    def __init__(self, model: Any, counter: tf.Variable) -> None:
        self.metrics: LegacyMetricState = LegacyMetricState(model)
        self.model = model
        self.counter = counter

    def compute(
        self,
        sums: MetricValues,
        batch: Any,
        weight: tf.Tensor | None = None,
        _totals: Sequence[tf.Tensor] | None = None,
    ) -> tuple[list[tf.Tensor], tf.Tensor, list[tf.Tensor]]:
        model = self.model
        x, y, sample_weight = keras.utils.unpack_x_y_sample_weight(batch)
        with self.metrics.holding(sums) as held, keras2.losses_of_one_replica():
            with tf.GradientTape() as tape:
                y_pred = model(x, training=True)
                loss = model.compute_loss(x, y, y_pred, sample_weight)
                counted = loss if weight is None else loss * tf.cast(weight, loss.dtype)
            gradients = tape.gradient(counted, model.trainable_variables)
            model.compiled_metrics.update_state(y, y_pred, sample_weight)
            added = [each.now for each in held]
        if weight is not None:
            added = [tf.where(weight > 0, *pair) for pair in zip(added, sums[:-1], strict=True)]
        return gradients, loss, [*added, sums[-1]]

    def measured(
        self, state: MetricValues, _x: Any, y: Any, y_pred: Any, weight: Any
    ) -> Sequence[tf.Tensor]:
        with self.metrics.holding(state) as held:
            self.model.compiled_metrics.update_state(y, y_pred, weight)
            return [each.now for each in held]

    def counts(self, _weight: tf.Tensor, _batch: Any) -> Counts:
        """None: tf_keras's losses are divided by the number of records, also where it is masked."""
        return []

    @property
    def weights(self) -> list[tf.Variable]:
        return list(self.model.trainable_variables)

    def apply(self, gradients: Sequence[tf.Tensor]) -> tf.Tensor:
        optimizer = self.model.optimizer
        done = self.counter.assign_add(1, read_value=True)
        # As with Keras 3: schedules and bias correction read it, and other workers may set it.
        optimizer.iterations.assign(done - 1)
        pairs = zip(gradients, self.model.trainable_variables, strict=True)
        # Gradients of several replicas have already been exchanged.
        optimizer.apply_gradients(pairs, skip_gradients_aggregation=True)
        return done


class LegacyKeras(KerasAdapter):
    """tf_keras."""

    module, internals = tf_keras, keras2

    def complete(self, model: tf_keras.Model, batch: Any, module: str) -> None:
        _check_methods(model)
        _check_optimizer(model.optimizer)
        if model.run_eagerly:
            print("run_eagerly=True has no effect here: every step is compiled", flush=True)
        _trace(model, batch)
        check_has_weights(model, module)
        model.optimizer.build(model.trainable_variables)

    def step(self, model: tf_keras.Model, counter: tf.Variable, _batch: Any) -> LegacyStep:
        return LegacyStep(model, counter)

    def predict(self, model: tf_keras.Model, x: Any) -> Any:
        return model(x, training=False)

    def save(self, model: tf_keras.Model, file: Path) -> None:
        model.save(str(file), save_format="keras", include_optimizer=False)
        tf_keras.models.load_model(str(file), compile=False)

    def variables(self, model: tf_keras.Model) -> list[tf.Variable]:
        return list(model.variables)

    def hint(self, value: Any) -> str:
        if isinstance(value, keras.Model):
            return ", or leave TF_USE_LEGACY_KERAS out of the replicas' environment"
        return ""

    def check_supported(self, strategy: str, arguments: TrainArguments) -> None:
        if strategy not in STRATEGIES:
            raise FinalError(
                f"strategy {strategy!r} trains no tf_keras models; choose one of "
                f"{', '.join(STRATEGIES)}, or a Keras 3 model without TF_USE_LEGACY_KERAS"
            )
        for option in ("jit_compile", "synchronized_batch_norm", "start_from"):
            if getattr(arguments, option):
                raise FinalError(
                    f"{option} is for Keras 3 models only, and TF_USE_LEGACY_KERAS asks for "
                    "tf_keras; leave it out, or use a Keras 3 model"
                )

    def check_callbacks(self, module: str) -> None:
        raise FinalError(
            f"callbacks of {module!r} returned some, and they are called for Keras 3 models only, "
            "while TF_USE_LEGACY_KERAS asks for tf_keras; return none, or use a Keras 3 model"
        )


def _check_methods(model: tf_keras.Model) -> None:
    for name in ("train_step", "compute_metrics"):
        if getattr(type(model), name) is not getattr(tf_keras.Model, name):
            raise FinalError(
                f"{type(model).__name__} has a {name} of its own, which the loop does not call "
                "for tf_keras models; override compute_loss or call instead, or use a Keras 3 model"
            )


def _check_optimizer(optimizer: Any) -> None:
    if isinstance(optimizer, tf_keras.mixed_precision.LossScaleOptimizer):
        raise FinalError(
            "the optimizer scales its losses, as mixed_float16 needs it, which the loop does not "
            "do for tf_keras models; use mixed_bfloat16, or a Keras 3 model"
        )
    if not isinstance(optimizer, tf_keras.optimizers.Optimizer):
        raise FinalError(
            f"the optimizer is a {type(optimizer).__module__}.{type(optimizer).__name__}; use one "
            "of tf_keras.optimizers, none of tf_keras.optimizers.legacy"
        )


def _trace(model: tf_keras.Model, batch: Any) -> None:
    """Create the variables of model and metrics by tracing a step, without computing it."""

    def once(batch: Any) -> None:
        x, y, weight = keras.utils.unpack_x_y_sample_weight(batch)
        y_pred = model(x, training=True)
        model.compute_loss(x, y, y_pred, weight)
        model.compiled_metrics.update_state(y, y_pred, weight)

    strategy = tf.distribute.get_strategy()
    # States of layers and metrics may be updated only in a replica context. A parameter server
    # strategy has none before there is a coordinator, and does not require it.
    replicated = strategy.num_replicas_in_sync > 1
    function = tf.function(
        (lambda each: strategy.run(once, args=(each,))) if replicated else once, autograph=False
    )
    function.get_concrete_function(batch)
