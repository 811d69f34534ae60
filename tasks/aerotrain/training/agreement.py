"""What the chief's callbacks have decided, told to the workers that run the same loop.

A worker that went on when the chief has stopped would wait for it for ever, and one with
another learning rate would train another model.
"""

from typing import Any

import keras
import tensorflow as tf


class Agreement:
    """Has every replica that computes together with the chief follow it; alone, it does nothing."""

    def __init__(
        self, strategy: tf.distribute.Strategy, model: keras.Model, is_chief: bool
    ) -> None:
        self._strategy = strategy
        self._model = model
        self._is_chief = is_chief
        self._has_peers = (
            strategy.extended._in_multi_worker_mode() and strategy.num_replicas_in_sync > 1
        )

    def reach(self, stop: bool) -> bool:
        """Take on the chief's learning rate; returns whether the chief has decided to stop.

        Every replica must call this at the same point of its loop.
        """
        if not self._has_peers:
            return stop
        rate: Any = getattr(self._model.optimizer, "learning_rate", None)
        settable = isinstance(rate, keras.Variable)
        own = [1.0, float(stop), float(rate.numpy()) if settable else 0.0]
        said = tf.constant(own if self._is_chief else [0.0] * len(own))
        total = self._strategy.reduce(
            tf.distribute.ReduceOp.SUM, self._strategy.run(lambda: tf.identity(said)), axis=None
        )
        # Each of the chief's devices has added what the chief says.
        chiefs, stops, rates = total.numpy()
        if settable and not self._is_chief:
            with self._strategy.scope():
                self._model.optimizer.learning_rate = rates / chiefs
        return bool(stops)
