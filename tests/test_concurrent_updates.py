"""Workers of the parameter server strategy that update the same variable at once."""

import threading

import keras
import numpy as np
import pytest
import tensorflow as tf

from aerotrain.training.strategies import ENGINES

ROWS, BATCH, RATE = 20_000, 1_000, 0.01


def model_of(optimizer):
    """A table of embeddings whose rows shall be 1."""
    model = keras.Sequential([keras.layers.Embedding(ROWS, 8, "zeros")])
    model.build((None,))
    model.compile(optimizer, "mse")
    return model


def worker(step, first):
    """A function that runs one step on a tenth of every second row, from row ``first``."""

    @tf.function(autograph=False)
    def run(number):
        rows = tf.range(BATCH) * 2 + first + number * BATCH * 2
        sums, _ = step([tf.constant(each) for each in step.metrics.zero], (rows, tf.ones((1, 8))))
        return sums

    run.get_concrete_function(tf.TensorSpec([], tf.int32))
    return run


# Adam is updated by one operation of TensorFlow, Nadam by those of Keras.
@pytest.mark.parametrize("name", ["Adam", "Nadam"])
def test_no_weight_moves_further_than_one_worker_would_move_it(name):
    for _ in range(8):
        model = model_of(getattr(keras.optimizers, name)(RATE))
        step = ENGINES["parameter_server"].step(model, tf.Variable(0, dtype=tf.int64), None)
        workers = [worker(step, first) for first in range(2)]
        begin = threading.Barrier(len(workers))

        def train(run, begin=begin):
            begin.wait()
            for number in range(ROWS // BATCH // 2):
                run(tf.constant(number))

        threads = [threading.Thread(target=train, args=(each,)) for each in workers]
        for each in threads:
            each.start()
        for each in threads:
            each.join()
        assert 0 < np.abs(model.get_weights()[0]).max() < 20 * RATE
