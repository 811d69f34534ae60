"""The chief's decisions, sent to the workers that run the same loop.

A worker that continued after the chief has stopped would wait for it forever. A worker with another
learning rate or another first checkpoint would train another model.
"""

from collections.abc import Sequence
from typing import Any

import keras
import tensorflow as tf


class ChiefDecisions:
    """Makes every replica that computes with the chief follow it. Without peers it does nothing.

    Every replica must call each method at the same point of its loop.
    """

    def __init__(self, strategy: tf.distribute.Strategy, *, is_chief: bool) -> None:
        self._strategy = strategy
        self.is_chief = is_chief
        self.has_peers = (
            strategy.extended._in_multi_worker_mode() and strategy.num_replicas_in_sync > 1
        )

    def reach(self, stop: bool, model: keras.Model) -> bool:
        """Take over the chief's learning rate, and return whether the chief has decided to stop."""
        if not self.has_peers:
            return stop
        rate: Any = getattr(model.optimizer, "learning_rate", None)
        settable = isinstance(rate, keras.Variable)
        stops, rates = self._of_chief([float(stop), float(rate.numpy()) if settable else 0.0])
        if settable and not self.is_chief:
            with self._strategy.scope():
                model.optimizer.learning_rate = rates
        return bool(stops)

    def numbers(self, own: Sequence[int]) -> list[int]:
        """The chief's numbers; every replica passes as many of its ``own``."""
        return [round(each) for each in self._of_chief(own)] if self.has_peers else list(own)

    def _of_chief(self, values: Sequence[float]) -> list[float]:
        own = [1.0, *values]
        # float64 represents the number of any step exactly.
        said = tf.constant(own if self.is_chief else [0.0] * len(own), tf.float64)
        total = self._strategy.reduce(
            tf.distribute.ReduceOp.SUM, self._strategy.run(lambda: tf.identity(said)), axis=None
        )
        # Each of the chief's devices has added the chief's values.
        chiefs, *sums = total.numpy()
        return [each / chiefs for each in sums]
