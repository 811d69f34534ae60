"""What the training loop needs of the devices and processes over which a model is distributed."""

import time
from collections.abc import Sequence
from contextlib import AbstractContextManager
from typing import Any, Protocol

import keras
import tensorflow as tf


class Distribution(Protocol):
    """The devices and processes that train one model.

    With peers, each of these processes must call ``sum`` and ``clock`` at the same points of its
    loop, for they wait for each other.
    """

    @property
    def has_peers(self) -> bool:
        """Whether other processes run the same loop."""

    def scope(self) -> AbstractContextManager[Any]:
        """A scope in which variables, including those of Keras, are created and assigned."""

    def sum(self, values: tf.Tensor) -> Any:
        """The sum of ``values`` over all replicas, as an array."""

    def clock(self) -> float:
        """Seconds, by which checkpoints are due; the chief's if all processes write them."""


class StrategyDistribution:
    """The ``Distribution`` of a ``tf.distribute.Strategy``, whose chief writes the checkpoints."""

    def __init__(self, strategy: tf.distribute.Strategy) -> None:
        self.strategy = strategy
        self.has_peers = has_peers(strategy)

    def scope(self) -> AbstractContextManager[Any]:
        return self.strategy.scope()

    def sum(self, values: tf.Tensor) -> Any:
        own = self.strategy.run(lambda: tf.identity(values))
        return self.strategy.reduce(tf.distribute.ReduceOp.SUM, own, axis=None).numpy()

    def clock(self) -> float:
        return time.monotonic()


def has_peers(strategy: tf.distribute.Strategy) -> bool:
    """Whether other processes run the same loop as this one."""
    return (
        isinstance(strategy, tf.distribute.MultiWorkerMirroredStrategy)
        and strategy.num_replicas_in_sync > 1
    )


def wait_for_all(distribution: Distribution) -> None:
    """A barrier for all replicas that compute together with this one.

    A process that ends closes the connections of the others, so none may end before the chief is
    done.
    """
    if distribution.has_peers:
        distribution.sum(tf.ones([]))


class ChiefDecisions:
    """Makes every replica that computes with the chief follow it. Without peers it does nothing.

    A worker that continued after the chief has stopped would wait for it forever. A worker with
    another learning rate or another first checkpoint would train another model. Every replica must
    call each method at the same point of its loop.
    """

    def __init__(self, distribution: Distribution, *, is_chief: bool) -> None:
        self._distribution = distribution
        self.is_chief = is_chief

    def reach(self, stop: bool, model: keras.Model) -> bool:
        """Take over the chief's learning rate, and return whether the chief has decided to stop."""
        if not self._distribution.has_peers:
            return stop
        rate: Any = getattr(model.optimizer, "learning_rate", None)
        settable = isinstance(rate, keras.Variable)
        stops, rates = self._of_chief([float(stop), float(rate.numpy()) if settable else 0.0])
        if settable and not self.is_chief:
            with self._distribution.scope():
                model.optimizer.learning_rate = rates
        return bool(stops)

    def numbers(self, own: Sequence[int]) -> list[int]:
        """The chief's numbers; every replica passes as many of its ``own``."""
        if not self._distribution.has_peers:
            return list(own)
        return [round(each) for each in self._of_chief(own)]

    def _of_chief(self, values: Sequence[float]) -> list[float]:
        own = [1.0, *values]
        # float64 represents the number of any step exactly.
        sent = tf.constant(own if self.is_chief else [0.0] * len(own), tf.float64)
        # Each of the chief's devices adds the chief's values.
        chiefs, *sums = self._distribution.sum(sent)
        return [float(each / chiefs) for each in sums]
