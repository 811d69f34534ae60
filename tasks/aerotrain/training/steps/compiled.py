"""Checks of a compiled Keras model: what it must have, and what a strategy does not support."""

from typing import Any

import keras
import tensorflow as tf

from aerotrain.contract.errors import FinalError
from aerotrain.training.steps.custom import has_custom_step

#: CPUs have no float16 arithmetic: the time of a step as a multiple of bfloat16's.
_FLOAT16_ON_CPU = 10


def symbolically_built(model: keras.Model, batch: Any) -> None:
    """Create every variable of ``model``, for batches of the element spec ``batch``."""
    symbols = tf.nest.map_structure(
        lambda spec: keras.KerasTensor(spec.shape, spec.dtype.name), batch
    )
    try:
        model._symbolic_build(data_batch=symbols)
    except RuntimeError:
        # A model with its own train_step may have no call; its step builds it.
        if not has_custom_step(model):
            raise


def check_trainable(model: keras.Model, module: str) -> None:
    """Check that the model can be trained at all.

    Raises:
        FinalError: the model has no trainable weights, or relies on ``keras.distribution``.
    """
    if keras.distribution.distribution() is not None:
        raise FinalError(
            f"build_model of {module!r} sets keras.distribution, which shards nothing under "
            "TensorFlow; leave it out, and choose a strategy of the job's instead"
        )
    if not model.trainable_weights and not has_custom_step(model):
        raise FinalError(
            f"the model that build_model of {module!r} returned has no trainable weights; "
            "leave trainable=True on the layers that are to learn"
        )
    if model.run_eagerly:
        print("run_eagerly=True has no effect here: every step is compiled", flush=True)


def check_strategy(strategy: str, model: keras.Model) -> None:
    """Check for what workers that update variables concurrently would compute incorrectly.

    Raises:
        FinalError: ``strategy`` is asynchronous, and the model needs its steps in order.
    """
    if strategy != "parameter_server":
        return
    if has_custom_step(model):
        raise FinalError(
            f"{type(model).__name__} has a train_step of its own, which keeps its metrics in "
            "variables, and 'parameter_server' loses updates of those; override compute_loss "
            "instead of train_step, or choose a synchronous strategy"
        )
    steps = getattr(inner(model.optimizer), "gradient_accumulation_steps", None)  # not tf_keras
    if steps:
        raise FinalError(
            f"the optimizer accumulates gradients over {steps} steps, and under "
            "'parameter_server' the workers would overwrite each other's; leave "
            "gradient_accumulation_steps out and raise batch_size, or choose a synchronous "
            "strategy"
        )


def inner(optimizer: Any) -> Any:
    """The optimizer that updates the weights: the inner one of a loss-scaling optimizer."""
    return getattr(optimizer, "inner_optimizer", optimizer)


def warn_of_slow_dtype_policy(policy: str) -> None:
    """Warn if the dtype policy costs more than it saves on this machine."""
    if policy == "mixed_float16" and not tf.config.list_physical_devices("GPU"):
        print(
            f"warning: mixed_float16 on a CPU takes about {_FLOAT16_ON_CPU} times as long as "
            "mixed_bfloat16, which needs no loss scaling either; choose that one",
            flush=True,
        )
