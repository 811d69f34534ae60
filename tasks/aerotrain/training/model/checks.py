"""Checks of what a strategy cannot do, before training starts."""

import math
from typing import Any

import keras
import tensorflow as tf

from aerotrain.contract.errors import FinalError
from aerotrain.contract.job import Job
from aerotrain.contract.replicas import Role
from aerotrain.contract.training import TrainArguments
from aerotrain.data.dataset import TRAIN_SPLIT, VALIDATION_SPLIT, Dataset
from aerotrain.training.internals import keras3
from aerotrain.training.model.keras_adapter import KERAS
from aerotrain.training.steps.custom import has_custom_step
from aerotrain.training.steps.step import inner


def check_job(job: Job, arguments: TrainArguments) -> None:
    """Check what needs neither the model nor the data, and set up TensorFlow for these options.

    Raises:
        FinalError: this Keras, or TensorFlow, cannot do it; the message says which option.
    """
    KERAS.check_supported(job.strategy, arguments)
    check_sizes(job, arguments)
    if arguments.is_synchronous and KERAS.name != "keras":
        raise FinalError(
            "update='synchronous' needs the gradients of a Keras 3 model, and this is tf_keras; "
            "choose 'asynchronous', or 'multi_worker_mirrored'"
        )
    if arguments.is_synchronous and job.count(Role.INPUT):
        raise FinalError(
            "data_workers transform whole batches, and update='synchronous' needs parts of one; "
            "leave data_workers out, or choose 'asynchronous'"
        )
    if arguments.deterministic:
        check_deterministic(job)


def check_asynchronous(strategy: str, model: keras.Model) -> None:
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
    check_unconditional(strategy, model)


def check_unconditional(strategy: str, model: keras.Model) -> None:
    """Check that the optimizer acts in each step, where replicas or a mesh have no conditions.

    Raises:
        FinalError: it acts in some steps only.
    """
    for name, instead in (  # a tf_keras optimizer has neither
        ("gradient_accumulation_steps", "raise batch_size, with the option of that name"),
        ("ema_overwrite_frequency", "let the averages be taken at the end of training"),
    ):
        if getattr(inner(model.optimizer), name, None):
            raise FinalError(
                f"the optimizer's {name} acts in some steps only, which {strategy!r} cannot; leave "
                f"it out and {instead}, or choose 'one_device'"
            )


def warn_of_metrics(model: keras.Model) -> None:
    """Name a Keras 3 model whose ``compute_metrics`` may return values that are not logged."""
    own = getattr(type(model), "compute_metrics", None)
    if isinstance(model, keras.Model) and own is not keras.Model.compute_metrics:
        print(
            f"warning: values that compute_metrics of {type(model).__name__} returns are logged "
            "if they are metrics of the model, when an epoch ends; return others in "
            "get_metrics_result",
            flush=True,
        )


def can_validate(job: Job) -> bool:
    """Whether the chief of ``job`` can measure the validation split alone, and no evaluator does.

    The host of a TPU could, but slowly.
    """
    return not (_is_divided(job) or job.strategy == "tpu" or job.count(Role.EVALUATOR))


def _is_divided(job: Job) -> bool:
    """Whether the weights are divided between processes."""
    return job.strategy == "dtensor" and job.count(Role.WORKER) > 0


def validates(job: Job, arguments: TrainArguments, dataset: Dataset, model: keras.Model) -> bool:
    """Whether each epoch is validated: as the option says, or else if nothing prevents it.

    A model with a training step of its own has no loss that ``evaluate`` can compute, unless it has
    a test step of its own too.
    """
    if arguments.validate is not None:
        return arguments.validate
    split, size = dataset.splits.get(VALIDATION_SPLIT), keras3.fixed_batch(model)
    if split is None or not split.records or not can_validate(job):
        return False
    if has_custom_step(model) and type(model).test_step is keras.Model.test_step:
        return False
    if arguments.drop_remainder:
        return split.records >= (size or arguments.batch_size)
    return not size or split.records % size == 0


def check_validation(job: Job) -> None:
    """Check whether the chief of ``job`` can measure the validation split after an epoch.

    Raises:
        FinalError: its weights are divided between processes.
    """
    if _is_divided(job):
        raise FinalError(
            "a callback needs the validation split, which no process can measure alone under "
            "'dtensor'; ask for an evaluator, which is a replica, and let the callback monitor a "
            "metric of training"
        )


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
            "deterministic cannot be where other replicas bring the input, for a random number of "
            "a transform depends on which one draws it; leave it out, or ask for no input"
        )
    tf.config.experimental.enable_op_determinism()


def check_remainder(model: Any, arguments: TrainArguments, split: str, records: int) -> None:
    """Check that the last batch of ``split`` is as large as all others, if ``model`` needs that.

    Raises:
        FinalError: it is smaller; the message names the option that drops it.
    """
    size = keras3.fixed_batch(model)
    if size and records % size and not arguments.drop_remainder:
        raise FinalError(
            f"the model takes batches of {size} records and no others, and the last one of the "
            f"split {split!r} would have {records % size}; set drop_remainder, or leave the size "
            "open in the model's Input"
        )


def check_fixed_batch(model: Any, arguments: TrainArguments, records: int, pieces: int = 1) -> None:
    """Check that the model takes batches of that size, which are each cut into ``pieces``.

    Raises:
        FinalError: it does not; the message names the size that it takes.
    """
    size = keras3.fixed_batch(model)
    if size and arguments.batch_size != size * pieces:
        raise FinalError(
            f"the model takes batches of {size} records and no others, and batch_size is "
            f"{arguments.batch_size}, cut into {pieces}; use {size * pieces}, or leave the size "
            "open in the model's Input"
        )
    check_remainder(model, arguments, TRAIN_SPLIT, records)


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


def check_sizes(job: Job, arguments: TrainArguments) -> None:
    """Check that peers can share the global batch with any number of workers that they may have.

    Raises:
        FinalError: they cannot; the message names these numbers, and a size of batches for all.
    """
    if not job.rules.peers or len(job.sizes) < 2:
        return
    devices = len(tf.config.list_physical_devices("GPU")) or 1
    devices = job.replica(Role.WORKER).resources.gpu or devices
    pieces = {n: (1 + n) * devices * arguments.gradient_accumulation_steps for n in job.sizes}
    wrong = [str(n) for n, each in pieces.items() if arguments.batch_size % each]
    if wrong:
        every = math.lcm(*pieces.values())
        raise FinalError(
            f"a global batch_size of {arguments.batch_size} cannot be shared by the chief and "
            f"{' or '.join(wrong)} workers, which workers={job.sizes[0]}..{job.sizes[-1]} may "
            f"become; use {-(-arguments.batch_size // every) * every}, or a smaller range"
        )


def check_exchanged(
    strategy: str, model: keras.Model, arguments: TrainArguments, replicas: int
) -> None:
    """Check that the microbatches of the model add up to the batch.

    Raises:
        FinalError: the model computes its own gradients, its optimizer acts in some steps only, or
            its loss is no number for a batch.
    """
    scales = isinstance(model.optimizer, keras.optimizers.LossScaleOptimizer)
    if scales and replicas > 1 and strategy == "central_storage":
        raise FinalError(
            "the optimizer scales the loss, as mixed_float16 needs, and so skips some steps, which "
            "'central_storage' cannot; use mixed_bfloat16, or choose 'mirrored'"
        )
    if replicas > 1:
        check_unconditional(strategy, model)
    plain = arguments.gradient_dtype == "float32" and not arguments.jit_compile
    if has_custom_step(model) and not (plain and arguments.gradient_accumulation_steps == 1):
        raise FinalError(
            f"{type(model).__name__} has a train_step of its own, which {strategy!r} runs whole: "
            "it cannot cut it into pieces, compile it in part, or see its gradients; leave "
            "gradient_accumulation_steps, jit_compile and gradient_dtype out, or override "
            "compute_loss instead of train_step"
        )
    reductions = {getattr(each, "reduction", None) for each in KERAS.losses(model)}
    known = isinstance(model, keras.Model)
    for unknown in (None, "none") if known else ("sum",):
        if unknown in reductions and KERAS.losses(model):
            raise FinalError(
                f"a loss has the reduction {unknown!r}, which is not that of a batch that is cut "
                "into pieces; use 'sum_over_batch_size'" + ("" if known else ", or a Keras 3 model")
            )
