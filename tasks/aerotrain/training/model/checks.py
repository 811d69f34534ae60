"""Checks of what a strategy cannot do, before training starts."""

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from aerotrain.contract.errors import FinalError
from aerotrain.contract.job import Job
from aerotrain.contract.options import check_strategy
from aerotrain.contract.replicas import Role
from aerotrain.contract.training import TrainArguments
from aerotrain.training.model.keras_adapter import KERAS
from aerotrain.training.steps.custom import has_custom_step
from aerotrain.training.steps.metric_state import MetricState
from aerotrain.training.steps.step import TrainStep, inner

#: CPUs have no float16 arithmetic: the time of a step as a multiple of bfloat16's.
_FLOAT16_ON_CPU = 10

#: Sizes of generated batches: their examples, and any other dimension that is not fixed.
_EXAMPLES = 8
_LENGTH = 3

_OF_KERAS = ("keras.", "tf_keras.")

States = list[np.ndarray[Any, Any]]


def check_job(job: Job, arguments: TrainArguments) -> None:
    """Check what needs neither the model nor the data, and set up TensorFlow for these options.

    Raises:
        FinalError: this Keras, or TensorFlow, cannot do it; the message says which option.
    """
    check_strategy(arguments, job.strategy)
    KERAS.check_strategy(job.strategy, arguments)
    if arguments.deterministic:
        check_deterministic(job)
    warn_of_slow_dtype_policy(arguments.dtype_policy)


def check_steps(
    strategy: str,
    step: TrainStep,
    arguments: TrainArguments,
    spec: Any,
    *,
    records: int,
    replicas: int,
) -> None:
    """Check that ``replicas`` replicas can share the steps of the model under ``strategy``.

    ``spec`` is the element spec of the batches; ``records`` is the number of records of an epoch.
    Must be called in the scope of a strategy.

    Raises:
        FinalError: they cannot; the message names the reason and an alternative.
    """
    check_divisible(strategy, arguments, replicas)
    asynchronous = strategy == "parameter_server"
    if replicas > 1 or asynchronous:
        check_additive_metrics(strategy, step, spec)
    if asynchronous and arguments.jit_compile:
        raise FinalError(
            "jit_compile cannot be under 'parameter_server', since XLA reads no variables of "
            "other processes; leave it out, or choose a synchronous strategy"
        )
    if replicas > 1 or arguments.gradient_accumulation_steps > 1 or arguments.jit_compile:
        check_exchanged(strategy, step.model, arguments, records, replicas)


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
    steps = getattr(inner(model.optimizer), "gradient_accumulation_steps", None)  # not tf_keras
    if steps:
        raise FinalError(
            f"the optimizer accumulates gradients over {steps} steps, and under "
            "'parameter_server' the workers would overwrite each other's; leave "
            "gradient_accumulation_steps out and raise batch_size, or choose a synchronous "
            "strategy"
        )


def check_validation(strategy: str, *, has_peers: bool) -> None:
    """Check whether the chief can measure the validation split after an epoch.

    Raises:
        FinalError: its weights are divided between processes.
    """
    if strategy == "dtensor" and has_peers:
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
    scales = isinstance(model.optimizer, keras.optimizers.LossScaleOptimizer)
    if scales and replicas > 1 and strategy == "central_storage":
        raise FinalError(
            "the optimizer scales the loss, as mixed_float16 needs, and so skips some steps, which "
            "'central_storage' cannot; use mixed_bfloat16, or choose 'mirrored'"
        )
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


def sums_its_loss(model: keras.Model) -> bool:
    """Whether one of the model's compiled losses is a sum over examples, not a mean."""
    return any(getattr(each, "reduction", None) == "sum" for each in KERAS.losses(model))


def warn_of_slow_dtype_policy(policy: str) -> None:
    """Warn if the dtype policy costs more than it saves on this machine."""
    if policy == "mixed_float16" and not tf.config.list_physical_devices("GPU"):
        print(
            f"warning: mixed_float16 on a CPU takes about {_FLOAT16_ON_CPU} times as long as "
            "mixed_bfloat16, which needs no loss scaling either; choose that one",
            flush=True,
        )


def check_additive_metrics(strategy: str, step: TrainStep, batch: Any) -> None:
    """Check that the metrics can be added up, as those of several replicas are.

    All of Keras's metrics are sums: of values, of counts, of a confusion matrix. A metric of the
    user's own is tested on generated batches. ``batch`` is the element spec of the batches.

    Raises:
        FinalError: some cannot; the message names them.
    """
    x, labels, _ = keras.utils.unpack_x_y_sample_weight(batch)
    sums = step.metrics
    doubtful = [metric for metric in sums.metrics if not _is_of_keras(type(metric))]
    possible = _possible_arguments(labels, _outputs(step.model, x)) if doubtful else []
    names = [metric.name for metric in doubtful if not _is_sum(metric, sums, possible)]
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

    replicated = strategy.num_replicas_in_sync > 1
    function = tf.function(
        (lambda each: strategy.run(call, args=(each,))) if replicated else call, autograph=False
    )
    try:
        function.get_concrete_function(x)
    except Exception:  # noqa: BLE001 -- a model with a step of its own may have no call at all
        return None
    return found[0]


def _possible_arguments(labels: Any, outputs: Any) -> list[tuple[Any, ...]]:
    """Specs of possible arguments of a metric: labels and outputs, or a vector of numbers."""
    flat = zip(tf.nest.flatten(labels), tf.nest.flatten(outputs), strict=False)
    return [*flat, (tf.TensorSpec([None]),)]


def _is_of_keras(kind: type) -> bool:
    """Whether Keras's own code updates and resets the state."""
    owners = [_owner(kind, name) for name in ("update_state", "reset_state")]
    return all(owner.__module__.startswith(_OF_KERAS) for owner in owners)


def _owner(kind: type, name: str) -> type:
    return next(each for each in kind.__mro__ if name in vars(each))


def _is_sum(metric: Any, sums: MetricState, possible: Sequence[tuple[Any, ...]]) -> bool:
    """Whether an update adds a value that does not depend on the state."""
    zero = sums.begin_of(metric)
    if any(each.dtype == bool or np.any(each) for each in zero):
        return False
    for update in _updates(metric, sums, possible):
        try:
            one, other = update(zero, 0), update(zero, 1)
        except Exception:  # noqa: BLE001 -- the user's code may raise anything at such a batch
            continue
        # A maximum ignores what is below it, so states on both sides are tested.
        below = [-1 - each for each in one]
        after = update(below, 1)
        if _same(other, zero) and _same(after, below):
            continue  # no value in such a batch counts
        return _same(update(one, 1), _added(one, other)) and _same(after, _added(below, other))
    print(
        f"warning: the metric {metric.name!r} of {type(metric).__name__} takes no batch that could "
        "be made up, so it was not tried; what replicas measure is added up, as if its state were "
        "a sum",
        flush=True,
    )
    return True


def _updates(
    metric: Any, sums: MetricState, possible: Sequence[tuple[Any, ...]]
) -> Iterator[Callable[[States, int], States]]:
    """Functions of a state and a batch's number that return the state after that batch."""
    for specs in possible:

        def update(states: States, number: int, specs: Any = specs) -> States:
            draw = np.random.default_rng(number)
            return sums.updated(metric, states, [_made_up(each, draw) for each in specs])

        yield update


def _made_up(spec: Any, draw: np.random.Generator) -> tf.Tensor:
    """Random values that fit ``spec``: numbers from 0 to 1, labels 0 and 1, or words."""
    first, *rest = spec.shape.as_list() or [None]
    shape = [_EXAMPLES if first is None else first, *(each or _LENGTH for each in rest)]
    dtype = tf.as_dtype(spec.dtype)
    if dtype == tf.string:
        return tf.constant(draw.choice([b"a", b"b"], shape))
    return tf.cast(
        draw.uniform(size=shape) if dtype.is_floating else draw.integers(0, 2, shape), dtype
    )


def _added(states: States, more: States) -> States:
    return [one + other for one, other in zip(states, more, strict=True)]


def _same(given: States, expected: States) -> bool:
    return all(
        np.allclose(*each, rtol=1e-3, atol=1e-5) for each in zip(given, expected, strict=True)
    )
