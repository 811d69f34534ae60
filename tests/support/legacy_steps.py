"""Compare our training steps of a tf_keras model with those of its ``fit``, in a new process.

``python legacy_steps.py DATA``: the URL of the prepared digits. TensorFlow and this project both
choose the Keras at import, so TF_USE_LEGACY_KERAS=1 must be in the environment.
"""

import sys
from pathlib import Path

import numpy as np
import tensorflow as tf
import tf_keras

from aerotrain.contract.training import TrainArguments
from aerotrain.data.dataset import load_dataset
from aerotrain.training.input.batches import parse
from aerotrain.training.input.shards import download
from aerotrain.training.model.code import UserCode
from aerotrain.training.model.keras_adapter import KERAS
from aerotrain.training.step_runner import LocalStepRunner
from aerotrain.training.strategies import ENGINES

STEPS = 80  # two epochs; the last batch of each is smaller


def main(data: str) -> None:
    dataset = load_dataset(data)
    user = UserCode.load("legacy")
    files = download(data, dataset.splits["train"].shards, Path.cwd())
    serialized = tf.data.TFRecordDataset([str(file) for file in files]).batch(32).repeat(2)
    batches = serialized.map(lambda each: user.transform(parse(each, dataset.schema)))
    compare(user, {"normalize": True, "ema": True}, batches)


def compare(user: UserCode, hparams: dict[str, bool], batches: tf.data.Dataset) -> None:
    """Raise AssertionError where a loss, a metric or a weight differs."""
    KERAS.seed(3)
    theirs = user.build(hparams, batches.element_spec)
    history: list[dict[str, float]] = []
    log = tf_keras.callbacks.LambdaCallback(on_train_batch_end=lambda _, logs: history.append(logs))
    theirs.fit(batches, steps_per_epoch=STEPS, callbacks=[log], verbose=0)

    distribution = ENGINES["one_device"].build(TrainArguments(model="legacy", data=""))
    with distribution.scope():
        KERAS.seed(3)
        ours = user.build(hparams, batches.element_spec)
        counter = tf.Variable(0, dtype=tf.int64)
    step = KERAS.step(ours, counter, batches.element_spec)
    step_runner = LocalStepRunner(distribution, step, batches, per_execution=1)
    results = [step.metrics.results(ran.sums) for ran in step_runner.run(STEPS)]
    ours.optimizer.finalize_variable_values(ours.trainable_variables)

    assert results[0].keys() == history[0].keys()
    for name in results[0]:
        given, expected = ([each[name] for each in logs] for logs in (results, history))
        np.testing.assert_allclose(given, expected, rtol=1e-5, err_msg=name)
    for given, expected in zip(ours.get_weights(), theirs.get_weights(), strict=True):
        np.testing.assert_allclose(given, expected, rtol=1e-4, atol=1e-5)
    assert counter.numpy() == ours.optimizer.iterations.numpy() == STEPS


if __name__ == "__main__":
    main(*sys.argv[1:])
