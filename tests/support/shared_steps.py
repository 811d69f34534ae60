"""Compare two replicas that share batches with ``fit``, in a process of its own.

``python shared_steps.py "MODULE: NAME"…``: trains each model of that name in the table ``MODELS``
of the module by ``fit`` on one device, and by two replicas of ``mirrored`` on two devices of this
machine. The module's table ``OPTIONS`` holds the options of models that need some.

The last batches are short: of two replicas one gets more records, and of one record one gets none.
"""

import importlib
import json
import sys

import numpy as np
import tensorflow as tf

from aerotrain.contract.training import TrainArguments
from aerotrain.training.input.batches import MicrobatchSpec
from aerotrain.training.model.code import UserCode, features_and_label
from aerotrain.training.model.keras_adapter import KERAS
from aerotrain.training.step_runner import LocalStepRunner
from aerotrain.training.steps.microbatches import MicrobatchStep
from aerotrain.training.steps.state import numbers
from aerotrain.training.strategies import ENGINES

SIZES = (32, 32, 29, 1, 32, 2)


def main(*models: str) -> None:
    [cpu] = tf.config.list_physical_devices("CPU")
    two = [tf.config.LogicalDeviceConfiguration()] * 2
    tf.config.set_logical_device_configuration(cpu, two)
    mirrored = ENGINES["mirrored"].build(TrainArguments(model="here", data=""))
    for model in models:
        module, _, name = model.partition(": ")
        table = importlib.import_module(f"support.{module}")
        build, options = table.MODELS[name], table.OPTIONS.get(name, {})
        try:
            compare(by_fit(table, build), by_replicas(table, build, mirrored, **options))
            said = "the same as fit"
        except Exception as error:  # noqa: BLE001 -- what it is is the test's to show
            said = f"{type(error).__name__}: {error}"
        print(json.dumps({"model": model, "said": said[:2000]}), flush=True)


def by_fit(table, build):
    """The logs at the end, and the weights, of a training by ``fit``."""
    batches = [
        tf.nest.map_structure(lambda each, rows=rows: each[rows], table.DATA)
        for rows in pieces_of(0, 1)
    ]
    KERAS.seed(3)
    model = user_of(build).build({}, spec_of(table.DATA))
    history = []
    keep = table.keras.callbacks.LambdaCallback(
        on_train_batch_end=lambda _, logs: history.append(numbers(logs))
    )
    dataset = tf.data.Dataset.from_generator(
        lambda: iter(batches), output_signature=spec_of(table.DATA)
    )
    # If fit does not know the number of batches, it decays the weights once more as it looks for a
    # next.
    dataset = dataset.apply(tf.data.experimental.assert_cardinality(len(batches)))
    model.fit(dataset, callbacks=[keep], verbose=0)
    return {"weights": weights_of(model), "logs": history[-1]}


def by_replicas(table, build, distribution, accumulate=1, jit=False):
    """The logs at the end, and the weights, of a training by two replicas."""
    spec = spec_of(table.DATA)
    with distribution.scope():
        KERAS.seed(3)
        model = user_of(build).build({}, spec)
        counter = tf.Variable(
            0, dtype=tf.int64, aggregation=tf.VariableAggregation.ONLY_FIRST_REPLICA
        )
        step = KERAS.step(model, counter, spec)
    together = MicrobatchStep(step, replicas=2, gradient_dtype="float32", jit_compile=jit)

    def element(batch, replica):
        cut = MicrobatchSpec(replicas=2, accumulate=accumulate)
        made = (cut.piece(batch, replica * accumulate + each) for each in range(accumulate))
        return tuple(
            (
                share,
                tf.nest.map_structure(lambda each, rows=rows: tf.gather(each, rows), table.DATA),
            )
            for share, rows in made
        )

    def pieces(_context):
        rows = tf.data.Dataset.from_generator(
            lambda: pieces_of(0, 2), output_signature=tf.TensorSpec([None], tf.int64)
        )
        return rows.enumerate().map(lambda number, each: element(each, number % 2))

    dataset = distribution.strategy.distribute_datasets_from_function(pieces)
    step_runner = LocalStepRunner(distribution, together, dataset, per_execution=len(SIZES))
    *_, ran = step_runner.run(len(SIZES))
    return {"weights": weights_of(model), "logs": step.metrics.results(ran.sums)}


def pieces_of(first, times):
    """The row numbers of each batch; each batch is repeated ``times`` times."""
    for size in SIZES:
        for _ in range(times):
            yield np.arange(first, first + size)
        first += size


def weights_of(model):
    # In tf_keras the variables of metrics belong to the model too, except where we keep metric
    # state.
    return [np.asarray(tf.convert_to_tensor(each)) for each in model.trainable_variables]


def spec_of(data):
    return tf.nest.map_structure(
        lambda each: tf.TensorSpec([None, *each.shape[1:]], each.dtype), data
    )


def user_of(build):
    return UserCode("here", lambda _: build(), features_and_label)


def compare(fit, shared, rtol=5e-4):
    """Raise AssertionError where a weight or a metric differs."""
    given, expected = shared["logs"], fit["logs"]
    assert sorted(given) == sorted(expected), f"{given} are logged, and by fit {expected}"
    for one, other in zip(shared["weights"], fit["weights"], strict=True):
        np.testing.assert_allclose(one, other, rtol=rtol, atol=1e-5)
    for name in expected:
        np.testing.assert_allclose(given[name], expected[name], rtol, 1e-6, err_msg=name)


if __name__ == "__main__":
    main(*sys.argv[1:])
