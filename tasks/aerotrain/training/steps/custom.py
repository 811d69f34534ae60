"""Training steps of models with their own ``train_step``."""

import threading
from collections.abc import Mapping, Sequence
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from aerotrain.contract.errors import FinalError
from aerotrain.training.internals import keras3
from aerotrain.training.steps.microbatches import summed
from aerotrain.training.steps.state import MetricScope, MetricState, MetricValues, flat
from aerotrain.training.steps.step import (
    Microbatch,
    StepResult,
    TrainStep,
    computed_at,
    first_bad,
    inner,
    updated,
)


class CustomStepMetricState(MetricState):
    """The metric state of a model with its own ``train_step``.

    A value that ``train_step`` returns under the name of a metric is that metric, over all steps so
    far. Other returned values are plain numbers; their result is the mean over the steps.
    """

    def __init__(self, model: keras.Model, logs: list[str], *, tracks_loss: bool) -> None:
        super().__init__(model)
        self._logs = logs
        names = {each.name for each in self.metrics}
        if plain := sorted({*logs} - (names if tracks_loss else names - {"loss"})):
            print(
                f"the train_step of {type(model).__name__} returns {', '.join(plain)}, of which it "
                "keeps no metric: the mean over the steps of an epoch is logged, and fit logs the "
                "value of the last step",
                flush=True,
            )
        *states, bad = self.zero
        self.zero = [*states, np.zeros(len(logs) + 1), bad]

    def added(
        self, sums: MetricValues, logs: Mapping[str, tf.Tensor], weight: tf.Tensor
    ) -> tf.Tensor:
        """The sums of the numbers in ``logs``, by ``weight``, and the sum of weights."""
        numbers = [tf.reduce_mean(tf.cast(logs[name], tf.float64)) for name in self._logs]
        return sums[-2] + tf.cast(weight, tf.float64) * tf.stack(
            [*numbers, tf.ones([], tf.float64)]
        )

    def results(self, sums: MetricValues) -> dict[str, float]:
        *totals, steps = np.asarray(sums[-2])
        means = {
            name: float(total / steps) if steps else 0.0
            for name, total in zip(self._logs, totals, strict=True)
        }
        known = super().results(sums)
        # A compiled model has a metric of the loss, which its own train_step may ignore. Its total
        # and count come first.
        if keras3.loss_tracker(self.model) is None or not np.asarray(sums[1]):
            known.pop("loss", None)
        return {name: known.get(name, mean) for name, mean in means.items()}


class WholeStepScope(keras.StatelessScope):  # type: ignore[misc]  # Keras has no types
    """A scope of a whole ``train_step``, in which what is assigned is not kept."""

    def __init__(self, state: list[tuple[Any, Any]] | None = None) -> None:
        super().__init__(state, collect_losses=False)

    def get_current_value(self, variable: Any) -> Any:
        # Keras reads the variables of regularizers here.
        value = super().get_current_value(variable)
        return keras3.direct_value(variable) if value is None else value


class CustomStepScope(WholeStepScope, MetricScope):
    """A scope of a whole ``train_step``, in which all but the metrics is as outside of it."""


class CustomStep(TrainStep):
    """One step of a model's own ``train_step``, to be called through ``strategy.run``.

    ``batch`` is the element spec of the batches. The step is traced once here, so that every
    variable is created, including those of optimizers that are internal to the model.
    """

    def __init__(self, model: keras.Model, counter: tf.Variable, batch: Any) -> None:
        logs, tracks_loss = _traced(model, batch)
        self.metrics: CustomStepMetricState = CustomStepMetricState(
            model, logs, tracks_loss=tracks_loss
        )
        self._losses = [name for name in logs if "loss" in name] or logs
        self.model = model
        self.counter = counter

    def __call__(
        self, sums: MetricValues, batch: Any, weight: tf.Tensor | None = None
    ) -> StepResult:
        weight = tf.ones([]) if weight is None else weight
        arrived = computed_at(batch)
        with CustomStepScope(self.metrics.pairs(sums)) as scope:
            logs = flat(self.model.train_step(batch))
        done = self.counter.assign_add(1, read_value=True)
        pairs = zip(self.metrics.of(scope), sums, strict=False)
        states = [tf.where(weight > 0, new, old) for new, old in pairs]
        losses = [tf.cast(logs[name], tf.float64) for name in self._losses]
        # Its gradients are not known here, so the whole weights are checked.
        weights = updated(self.weights, self.weights)
        bad = first_bad(sums[-1], [*losses, *weights], done)
        # The exchange of gradients is within the model's own step, so it counts as computing.
        return [*states, self.metrics.added(sums, logs, weight), bad], computed_at(bad) - arrived


class ReplicatedCustomStep:
    """``step`` on one replica of several, to be called through ``strategy.run``.

    Each optimizer of the model gets the mean of the replicas' gradients, by their parts of the
    batch, before it clips or scales them.
    """

    def __init__(self, step: CustomStep) -> None:
        self.metrics: MetricState = step.metrics
        self._step = step
        #: The weight of the microbatch, for the optimizers; each replica is traced in a thread.
        self._now = threading.local()
        found = keras3.optimizers(step.model)
        inner_ones = {id(inner(each)) for each in found if inner(each) is not each}
        for each in found:
            exchanged = self._mean if id(each) not in inner_ones else list
            keras3.exchange_gradients_by(each, exchanged)

    def __call__(
        self, sums: MetricValues, microbatches: Sequence[tuple[tf.Tensor, Any]]
    ) -> StepResult:
        [(weight, batch)] = microbatches
        self._now.weight = weight
        with keras3.sharing(Microbatch(weight, counts_all=True)):
            return self._step(sums, batch, weight)

    def _mean(self, gradients: Sequence[Any]) -> list[Any]:
        """The mean of each gradient, or None, over the replicas."""
        own = [_times(each, self._now.weight) for each in gradients if each is not None]
        means = iter(summed(own))
        return [each if each is None else next(means) for each in gradients]


def _times(gradient: Any, weight: tf.Tensor) -> Any:
    if not isinstance(gradient, tf.IndexedSlices):
        return gradient * tf.cast(weight, gradient.dtype)
    return tf.IndexedSlices(_times(gradient.values, weight), gradient.indices, gradient.dense_shape)


def step_of(model: keras.Model, counter: tf.Variable, batch: Any) -> TrainStep:
    """The model's own step if it has one, else the loop's; ``batch`` is an element spec."""
    return (
        CustomStep(model, counter, batch) if has_custom_step(model) else TrainStep(model, counter)
    )


def has_custom_step(model: keras.Model) -> bool:
    """Whether the model, or its class, overrides ``train_step``."""
    # tf_keras models with their own train_step are rejected earlier.
    own = getattr(model.train_step, "__func__", None) is not keras.Model.train_step
    return isinstance(model, keras.Model) and own


def _traced(model: keras.Model, batch: Any) -> tuple[list[str], bool]:
    """The names of the values that ``train_step`` returns, and whether it tracks the loss.

    Raises:
        FinalError: it does not return a dict of numbers by name, or it creates variables that
            replicas cannot share.
    """
    strategy = tf.distribute.get_strategy()
    function = tf.function(lambda each: strategy.run(model.train_step, args=(each,)))
    unbuilt = [
        f"{type(each).__name__} {each.name!r}"
        for each in tf.train.TrackableView(model).descendants()
        if isinstance(each, keras.optimizers.Optimizer | keras.layers.Layer) and not each.built
    ]
    try:
        traced = function.get_concrete_function(batch)
        returned = traced.structured_outputs
    except Exception as error:
        if strategy.num_replicas_in_sync == 1 or not unbuilt:
            raise
        raise FinalError(
            f"the train_step of {type(model).__name__} does not run on several replicas, where it "
            f"cannot create variables, and these have none yet: {', '.join(unbuilt)}; call build "
            "of each in build_model, of a layer with a shape, and of an optimizer with the "
            "trainable variables that it updates"
        ) from error
    if not isinstance(returned, Mapping) or not returned:
        raise FinalError(
            f"the train_step of {type(model).__name__} returns {returned!r:.80}; "
            "return a dict of numbers by name, the loss among them"
        )
    tracker = keras3.loss_tracker(model)
    tracked = [each.value for each in tracker.variables] if tracker else []
    here = [part for each in tracked for part in strategy.experimental_local_results(each)]
    used = {id(each.handle) for each in traced.graph.variables}
    return list(flat(returned)), any(id(each.handle) in used for each in here)
