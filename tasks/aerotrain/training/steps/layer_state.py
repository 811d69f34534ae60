"""What layers keep besides weights, under several replicas: statistics, own state, and seeds.

Keras gives each replica its own copy of all. Each one's moving averages would see only its part of
each batch, and those of the first replica would be saved. All replicas would draw equal numbers, so
that a dropout would drop the same units of several examples.
"""

from collections.abc import Sequence
from typing import Any

import keras
import tensorflow as tf

from aerotrain.training.internals import keras3, tensorflow2

#: The distance between the seeds of two replicas.
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
    statistics = [each for layer in _batch_norms(model) for each in layer.non_trainable_weights]
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
    for layer in _batch_norms(model):
        layer.synchronized = True


def seed_by_replica(model: Any) -> None:
    """Let the layers of each replica draw other random numbers."""
    for generator in keras3.seed_generators(model):
        keras3.change_seeds(generator, _of_replica)


def _of_replica(seed: tf.Tensor) -> tf.Tensor:
    replica = tf.distribute.get_replica_context()
    if replica is None:
        return seed
    number = tf.cast(replica.replica_id_in_sync_group, seed.dtype) * _BETWEEN_SEEDS
    return seed + tf.stack([number, tf.zeros_like(number)])


def _batch_norms(model: Any) -> list[Any]:
    layers = keras3.layers(model)
    return [each for each in layers if isinstance(each, keras.layers.BatchNormalization)]
