"""Models of tf_keras, which is Keras 2, adapted to the loop for Keras 3.

Imported only if TF_USE_LEGACY_KERAS is set, see ``aerotrain.training.model.keras_adapter``.
"""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import keras
import tensorflow as tf

from aerotrain.contract.errors import FinalError
from aerotrain.training.steps.legacy import LegacyStep

try:
    import tf_keras
    from tf_keras.src import backend
except ModuleNotFoundError as error:
    raise FinalError(
        "TF_USE_LEGACY_KERAS asks for tf_keras, and it is not installed; install aerotrain's "
        "extra 'legacy', or leave the variable out"
    ) from error

#: The strategies that are tested to train tf_keras models as one device does.
STRATEGIES = ("one_device", "mirrored", "multi_worker_mirrored", "parameter_server")


class LegacyKeras:
    """tf_keras: a ``KerasAdapter``."""

    name = "tf_keras"

    def seed(self, seed: int) -> None:
        tf_keras.utils.set_random_seed(seed)

    @contextmanager
    def dtype_policy(self, policy: str) -> Iterator[None]:
        before = tf_keras.mixed_precision.global_policy()
        tf_keras.mixed_precision.set_global_policy(policy)
        try:
            yield
        finally:
            tf_keras.mixed_precision.set_global_policy(before)

    @contextmanager
    def naming(self, made: Mapping[str, int]) -> Iterator[dict[str, int]]:
        # https://github.com/keras-team/tf-keras/blob/v2.21.0/tf_keras/backend.py
        counts, names = dict(backend.PER_GRAPH_OBJECT_NAME_UIDS), set(backend.OBSERVED_NAMES)
        backend.reset_uids()
        own = backend.get_default_graph_uid_map()
        own.update(made)
        try:
            yield own
        finally:
            backend.reset_uids()
            backend.PER_GRAPH_OBJECT_NAME_UIDS.update(counts)
            backend.OBSERVED_NAMES.update(names)

    def is_model(self, value: Any) -> bool:
        return isinstance(value, tf_keras.Model)

    def is_compiled(self, model: tf_keras.Model) -> bool:
        return bool(model._is_compiled)

    def complete(self, model: tf_keras.Model, batch: Any, module: str) -> None:
        _refuse_what_is_its_own(model)
        _refuse_optimizer(model.optimizer)
        if model.run_eagerly:
            print("run_eagerly=True has no effect here: every step is compiled", flush=True)
        _trace(model, batch)
        if not model.trainable_variables:
            raise FinalError(
                f"the model that build_model of {module!r} returned has no trainable weights; "
                "leave trainable=True on the layers that are to learn"
            )
        model.optimizer.build(model.trainable_variables)

    def step(self, model: tf_keras.Model, counter: tf.Variable, _batch: Any) -> LegacyStep:
        return LegacyStep(model, counter)

    def predict(self, model: tf_keras.Model, x: Any) -> Any:
        return model(x, training=False)

    def variables(self, model: tf_keras.Model) -> list[tf.Variable]:
        return list(model.variables)

    def losses(self, model: tf_keras.Model) -> list[Any]:
        return list(filter(None, tf.nest.flatten(model.compiled_loss._losses)))

    def hint(self, value: Any) -> str:
        if isinstance(value, keras.Model):
            return ", or leave TF_USE_LEGACY_KERAS out of the replicas' environment"
        return ""

    def refuse(self, strategy: str, *, jit_compile: bool) -> None:
        if strategy not in STRATEGIES:
            raise FinalError(
                f"strategy {strategy!r} trains no tf_keras models; choose one of "
                f"{', '.join(STRATEGIES)}, or a Keras 3 model without TF_USE_LEGACY_KERAS"
            )
        if jit_compile:
            raise FinalError(
                "jit_compile is for Keras 3 models only, and TF_USE_LEGACY_KERAS asks for "
                "tf_keras; leave it out, or use a Keras 3 model"
            )

    def check_callbacks(self, module: str) -> None:
        raise FinalError(
            f"callbacks of {module!r} returned some, and they are called for Keras 3 models only, "
            "while TF_USE_LEGACY_KERAS asks for tf_keras; return none, or use a Keras 3 model"
        )


def _refuse_what_is_its_own(model: tf_keras.Model) -> None:
    for name in ("train_step", "compute_metrics"):
        if getattr(type(model), name) is not getattr(tf_keras.Model, name):
            raise FinalError(
                f"{type(model).__name__} has a {name} of its own, which the loop does not call "
                "for tf_keras models; override compute_loss or call instead, or use a Keras 3 model"
            )


def _refuse_optimizer(optimizer: Any) -> None:
    if isinstance(optimizer, tf_keras.mixed_precision.LossScaleOptimizer):
        raise FinalError(
            "the optimizer scales its losses, as mixed_float16 needs it, which the loop does not "
            "do for tf_keras models; use mixed_bfloat16, or a Keras 3 model"
        )
    if not isinstance(optimizer, tf_keras.optimizers.Optimizer):
        raise FinalError(
            f"the optimizer is a {type(optimizer).__module__}.{type(optimizer).__name__}; use one "
            "of tf_keras.optimizers, none of tf_keras.optimizers.legacy"
        )


def _trace(model: tf_keras.Model, batch: Any) -> None:
    """Create the variables of model and metrics by tracing a step, without computing it."""

    def once(batch: Any) -> None:
        x, y, weight = keras.utils.unpack_x_y_sample_weight(batch)
        y_pred = model(x, training=True)
        model.compute_loss(x, y, y_pred, weight)
        model.compiled_metrics.update_state(y, y_pred, weight)

    strategy = tf.distribute.get_strategy()
    # States of layers and metrics may be updated only in a replica context. A parameter server
    # strategy has none before there is a coordinator, and does not require it.
    together = strategy.num_replicas_in_sync > 1
    function = tf.function(
        (lambda each: strategy.run(once, args=(each,))) if together else once, autograph=False
    )
    function.get_concrete_function(batch)
