"""The state that a step keeps besides weights: of metrics, and of layers.

Metrics are values here that steps take and return, not variables: concurrent updates of variables
on a parameter server get lost, and under other strategies each variable would need its own
reduction. The sums of several executions can be added.

Of what layers keep, statistics, own state and seeds, Keras gives each replica its own copy. Each
one's moving averages would see only its part of each batch, and those of the first replica would be
saved. All replicas would draw equal numbers, so that a dropout would drop the same units of several
examples.
"""

from collections.abc import Mapping, Sequence
from operator import itemgetter
from types import MappingProxyType
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from aerotrain.training.internals import keras3, tensorflow2

#: The state of every metric of a model, in the order of ``MetricState.variables``, followed by the
#: value that ``MetricState.bad_step`` reads.
MetricValues = Sequence[tf.Tensor]


class MetricState:
    """The model's metrics, including the mean loss, as values instead of variables."""

    def __init__(self, model: keras.Model) -> None:
        self.model = model
        metrics = dict.fromkeys([*keras3.own_metrics(model), *model.metrics])
        compiled = keras3.compiled_metrics(model)
        by_batch = keras3.output_loss_metrics(model)
        #: Each single metric, including those of ``compile``.
        self.metrics: list[Any] = [
            metric for each in metrics for metric in (each.metrics if each is compiled else [each])
        ]
        tracked = [keras3.loss_tracker(model), compiled, *by_batch]
        #: Whether the model or its layers have metrics that they update while they are called.
        self.in_call = any(each not in tracked for each in metrics)
        self.variables = [variable for metric in metrics for variable in metric.variables]
        #: The variables of per-output loss metrics, which count each batch once.
        self.by_batch = {id(variable) for metric in by_batch for variable in metric.variables}
        states = [np.asarray(each) for metric in metrics for each in metric.stateless_reset_state()]
        self.zero: list[np.ndarray[Any, Any]] = [*states, np.zeros(2)]

    def scope(self, sums: MetricValues) -> "MetricScope":
        """A scope in which the metrics read and update ``sums`` instead of their variables."""
        return MetricScope(self.pairs(sums))

    def pairs(self, sums: MetricValues) -> list[tuple[Any, tf.Tensor]]:
        """Each of the metrics' variables with its value."""
        return list(zip(self.variables, sums, strict=False))

    def of(self, scope: keras.StatelessScope) -> list[tf.Tensor]:
        """The sums that the metrics left in ``scope``, in the shapes of their variables."""
        return [
            tf.ensure_shape(scope.get_current_value(variable), variable.shape)
            for variable in self.variables
        ]

    def results(self, sums: MetricValues) -> dict[str, float]:
        """The results of ``sums``: a number per metric, under the name that ``fit`` gives it.

        The result of a metric with several numbers, such as one per class, is their mean.
        """
        with self.scope(sums):
            return numbers(self.model.get_metrics_result())

    def names(self) -> list[str]:
        """The names of what is logged for each epoch."""
        return list(self.results(self.zero))

    def measured_names(self) -> list[str] | None:
        """The names of what ``evaluate`` measures; None if the model has its own ``test_step``."""
        if type(self.model).test_step is not keras.Model.test_step:
            return None
        return list(MetricState.results(self, self.zero))

    def bad_step(self, sums: MetricValues) -> int | None:
        """The first step whose loss, or a weight after it, was not finite; None without one.

        Replicas that compute one step together each add the number of their own first bad step, and
        one to the count. A bad value on one replica reaches all by the next step, because they
        share their gradients. So the mean, rounded down, is the first bad step of all.
        """
        numbers, replicas = np.asarray(sums[-1])
        return int(numbers // replicas) if replicas else None


class MetricScope(keras.StatelessScope):  # type: ignore[misc]  # Keras has no types
    """Captures assignments to some variables, and applies all other assignments.

    Layers that are called in it update their own state as usual, such as the statistics of batch
    normalization.
    """

    #: Values by the ``id`` of a weight that the model uses instead of the weight.
    fetched: Mapping[int, tf.Tensor] = MappingProxyType({})

    def __init__(self, state: list[tuple[Any, Any]], *, collect_losses: bool = True) -> None:
        super().__init__(state, collect_losses=collect_losses)

    def add_update(self, update: tuple[Any, Any]) -> None:
        variable, value = update
        if id(variable) in self.state_mapping:
            super().add_update(update)
        else:
            keras3.assign_directly(variable, value)


def flat(results: Mapping[str, Any]) -> dict[str, Any]:
    """``results`` by name; a dict of several results is replaced by its items."""
    parts = [
        (name, flat(value) if isinstance(value, Mapping) else {name: value})
        for name, value in results.items()
    ]
    # Of two results with one name, fit logs that of the metric whose own name sorts last.
    kept = {
        name: value for _, part in sorted(parts, key=itemgetter(0)) for name, value in part.items()
    }
    return {name: kept[name] for _, part in parts for name in part}


def numbers(results: Mapping[str, Any]) -> dict[str, float]:
    """A number for each of ``results``; the mean if a result has several, such as per class."""
    return {name: float(np.mean(value)) for name, value in flat(results).items()}


#: The distance between the seeds of two replicas, or of two parts of a batch.
_BETWEEN_SEEDS = 1_000_003


class LayerState:
    """The state of batch normalization and of the user's own layers, a copy on each replica.

    Moving averages are linear in the statistics of the batches, so the mean of what all replicas
    have added is what one variable of all replicas would be. Counts of calls are equal on all. Both
    methods are called by each replica.
    """

    def __init__(self, model: Any) -> None:
        values = [each.value for each in kept_by_layers(model)]
        self._own = [each for each in values if isinstance(each, tf.distribute.DistributedValues)]

    def read(self) -> list[tf.Tensor]:
        """The state, when it is equal on all replicas."""
        return [each.read_value() for each in self._own]

    def join(self, before: Sequence[tf.Tensor]) -> None:
        """Make the state equal, where ``before`` is what ``read`` returned."""
        if not self._own:
            return
        added = [each.read_value() - old for each, old in zip(self._own, before, strict=True)]
        # A mean of integers would be rounded down, and values are reduced together in one dtype.
        exact = [tf.cast(each, tf.float64) for each in added]
        replica = tf.distribute.get_replica_context()
        means = replica.all_reduce(tf.distribute.ReduceOp.MEAN, exact)
        for variable, old, mean in zip(self._own, before, means, strict=True):
            whole = mean if old.dtype.is_floating else tf.round(mean)
            variable.assign(old + tf.cast(whole, old.dtype))


def kept_by_layers(model: Any) -> list[Any]:
    """The numbers that layers update while they are called: statistics, and a user's own."""
    statistics = [each for layer in batch_norms(model) for each in layer.non_trainable_weights]
    own = keras3.own_state(model) if isinstance(model, keras.Model) else []
    found = {id(each): each for each in [*statistics, *own]}.values()
    return [each for each in found if tf.as_dtype(each.dtype) not in (tf.bool, tf.string)]


def aggregate_in_center(model: Any) -> None:
    """Set how values that several replicas assign to one central variable are aggregated.

    Statistics become the mean of the replicas' values, as weights do, which some optimizers assign
    on each replica. Seed states, which all replicas advance equally, are taken from the first one.
    """
    for variable in [*model.variables, *model.optimizer.variables]:
        central = variable.value
        if central.aggregation == tf.VariableAggregation.NONE:
            first = tf.VariableAggregation.ONLY_FIRST_REPLICA
            mean = tf.VariableAggregation.MEAN
            tensorflow2.aggregate_by(central, mean if central.dtype.is_floating else first)


def synchronize_batch_norm(model: Any) -> None:
    """Let every batch normalization use the statistics of the batches of all replicas."""
    for layer in batch_norms(model):
        layer.synchronized = True


def seed_by_replica(model: Any) -> None:
    """Let the layers of each replica draw other random numbers."""
    for generator in keras3.seed_generators(model):
        keras3.change_seeds(generator, _of_replica)


def _of_replica(seed: tf.Tensor) -> tf.Tensor:
    replica = tf.distribute.get_replica_context()
    if replica is None:
        return seed
    return seed_of(replica.replica_id_in_sync_group, seed)


def seed_of(number: tf.Tensor, seed: tf.Tensor) -> tf.Tensor:
    """The seed of the replica, or of the part of a batch, of that number."""
    distance = tf.cast(number, seed.dtype) * _BETWEEN_SEEDS
    return seed + tf.stack([distance, tf.zeros_like(distance)])


def batch_norms(model: Any) -> list[Any]:
    """The layers of batch normalization, at any depth."""
    layers = keras3.layers(model)
    return [each for each in layers if isinstance(each, keras.layers.BatchNormalization)]
