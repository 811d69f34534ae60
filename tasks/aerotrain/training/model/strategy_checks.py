"""Checks of what a strategy cannot do, before its replicas start."""

from typing import Any

import keras
import tensorflow as tf

from aerotrain.contract.errors import FinalError
from aerotrain.contract.job import Job, Role
from aerotrain.contract.steps import TrainArguments
from aerotrain.training.model.keras_adapter import KERAS
from aerotrain.training.steps.additive import unsummed
from aerotrain.training.steps.compiled import inner
from aerotrain.training.steps.custom import has_custom_step
from aerotrain.training.steps.step import TrainStep


def check_deterministic(job: Job) -> None:
    """Make TensorFlow's operations deterministic, so that each run computes the same bits.

    Raises:
        FinalError: the order of the job's steps is not deterministic.
    """
    if job.rules.ps:
        raise FinalError(
            "deterministic cannot be under 'parameter_server', whose workers' steps count in the "
            "order in which they are done; leave it out, or choose a synchronous strategy"
        )
    if job.count(Role.INPUT):
        raise FinalError(
            "deterministic cannot be where other replicas bring the input, for batches are taken "
            "in the order in which they come; leave it out, or ask for no input"
        )
    tf.config.experimental.enable_op_determinism()


def check_divisible(strategy: str, arguments: TrainArguments, replicas: int) -> None:
    """Check that the global batch divides among the replicas and their microbatches.

    Raises:
        FinalError: it does not; the message contains the nearest sizes that do.
    """
    pieces = replicas * arguments.gradient_accumulation_steps
    size = arguments.batch_size
    if size % pieces == 0:
        return
    below, above = size // pieces * pieces, -(-size // pieces) * pieces
    nearest = f"{below} or {above}" if below else f"{above}"
    accumulated = f" of {arguments.gradient_accumulation_steps} pieces each" * (
        arguments.gradient_accumulation_steps > 1
    )
    raise FinalError(
        f"a global batch_size of {size} cannot be shared by the {replicas} replicas{accumulated} "
        f"of {strategy!r}; use {nearest}"
    )


def check_exchanged(
    strategy: str, model: keras.Model, arguments: TrainArguments, records: int, replicas: int
) -> None:
    """Check that the microbatches of the model add up to the batch.

    Raises:
        FinalError: the model computes its own gradients, its optimizer acts in some steps only, or
            it sums its loss over examples while the last batch is uneven.
    """
    steps = getattr(inner(model.optimizer), "gradient_accumulation_steps", None)  # not tf_keras
    if steps and replicas > 1:
        raise FinalError(
            f"the optimizer accumulates gradients over {steps} steps, and the replicas of "
            f"{strategy!r} exchange gradients in every step; leave the optimizer's "
            "gradient_accumulation_steps out, and use the option of that name with a greater "
            "batch_size"
        )
    plain = arguments.gradient_dtype == "float32" and not arguments.jit_compile
    if has_custom_step(model) and not (plain and arguments.gradient_accumulation_steps == 1):
        raise FinalError(
            f"{type(model).__name__} has a train_step of its own, which {strategy!r} runs whole: "
            "it cannot cut it into pieces, compile it in part, or see its gradients; leave "
            "gradient_accumulation_steps, jit_compile and gradient_dtype out, or override "
            "compute_loss instead of train_step"
        )
    last = records % arguments.batch_size
    if last % (replicas * arguments.gradient_accumulation_steps) and sums_its_loss(model):
        raise FinalError(
            f"the loss has the reduction 'sum', and the last batch of {last} records cannot be "
            f"shared evenly by the {replicas} replicas of {strategy!r}; use the reduction "
            "'sum_over_batch_size', or a batch_size that leaves an even rest"
        )


def check_additive_metrics(strategy: str, step: TrainStep, batch: Any) -> None:
    """Check that the metrics can be added up, as those of several replicas are.

    ``batch`` is the element spec of the batches.

    Raises:
        FinalError: some cannot; the message names them.
    """
    x, labels, _ = keras.utils.unpack_x_y_sample_weight(batch)
    names = unsummed(step.metrics, lambda: _outputs(step.model, x), labels)
    if names:
        raise FinalError(
            f"{strategy!r} adds up what replicas measure, and the state of {', '.join(names)} is "
            "no sum, but such as a maximum, a moving mean or a last value; keep sums in the "
            "metric's variables, leave it out, or choose 'one_device'"
        )


def _outputs(model: Any, x: Any) -> Any:
    """The spec of the outputs of ``model`` for a batch ``x``; None if it cannot be called."""
    strategy, found = tf.distribute.get_strategy(), []

    def call(batch: Any) -> None:
        outputs = tf.nest.map_structure(tf.convert_to_tensor, KERAS.predict(model, batch))
        found.append(tf.nest.map_structure(tf.TensorSpec.from_tensor, outputs))

    together = strategy.num_replicas_in_sync > 1
    function = tf.function(
        (lambda each: strategy.run(call, args=(each,))) if together else call, autograph=False
    )
    try:
        function.get_concrete_function(x)
    except Exception:  # noqa: BLE001 -- a model with a step of its own may have no call at all
        return None
    return found[0]


def sums_its_loss(model: keras.Model) -> bool:
    """Whether one of the model's compiled losses is a sum over examples, not a mean."""
    return any(getattr(each, "reduction", None) == "sum" for each in KERAS.losses(model))
