"""The Keras that a process trains with: Keras 3, or tf_keras if TF_USE_LEGACY_KERAS is set.

All differences between the two are in ``KERAS``; the loop is the same.
"""

import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import keras
import tensorflow as tf

from aerotrain.contract.errors import FinalError
from aerotrain.contract.training import TrainArguments
from aerotrain.training.internals import keras3
from aerotrain.training.steps.custom import has_custom_step, step_of
from aerotrain.training.steps.step import TrainStep

#: The variable by which TensorFlow chooses, and its values that select tf_keras.
VARIABLE = "TF_USE_LEGACY_KERAS"
_TRUE = ("1", "true", "True")


class KerasAdapter:
    """One Keras: its models, and how they are built, trained and called. This one is Keras 3."""

    #: The module that users import, and its private names.
    module: Any = keras
    internals: Any = keras3

    @property
    def name(self) -> str:
        """The name of the module that users import."""
        return str(self.module.__name__)

    def seed(self, seed: int) -> None:
        """Seed Python, NumPy, TensorFlow, and the initial weights of models."""
        self.module.utils.set_random_seed(seed)

    @contextmanager
    def dtype_policy(self, policy: str) -> Iterator[None]:
        """A context that sets the dtype policy of new layers; ``float32`` leaves it to the user."""
        if policy == "float32":
            yield
            return
        before = self.module.mixed_precision.global_policy()
        self.module.mixed_precision.set_global_policy(policy)
        try:
            yield
        finally:
            self.module.mixed_precision.set_global_policy(before)

    def complete(self, model: Any, batch: Any, module: str) -> None:
        """Create every variable of the model that ``build_model`` of ``module`` returned.

        ``batch`` is the element spec of the model's batches.

        Raises:
            FinalError: no strategy can train the model.
        """
        _build_symbolically(model, batch)
        _check_methods(model, module)
        if not has_custom_step(model):
            check_has_weights(model, module)

    def step(self, model: Any, counter: tf.Variable, batch: Any) -> TrainStep:
        """The training step of the model; ``counter`` counts the steps."""
        return step_of(model, counter, batch)

    def predict(self, model: Any, x: Any) -> Any:
        """The model's outputs for the batch ``x``, outside of training."""
        return keras3.call(model, x, training=False)

    def save(self, model: Any, file: Path) -> None:
        """Write the model without its optimizer to a ``.keras`` file, and load it again.

        ``model`` cannot be trained afterwards. Any exception means that the file is of no use.
        """
        model.compiled, model.optimizer = False, None
        model.save(file)
        loaded = keras.saving.load_model(file)
        if len(loaded.weights) != len(model.weights):
            raise ValueError(f"it has {len(loaded.weights)} of {len(model.weights)} weights")

    def variables(self, model: Any) -> list[tf.Variable]:
        """The TensorFlow variables of the model."""
        return [variable.value for variable in model.variables]

    def losses(self, model: Any) -> list[Any]:
        """The losses that the model was compiled with."""
        return list(self.internals.losses(model))

    def hint(self, value: Any) -> str:
        """Advice about ``value``, if it is a model of the other Keras; otherwise empty."""
        # By name, because tf_keras need not be installed with Keras 3.
        if any(each.__module__.startswith("tf_keras.") for each in type(value).__mro__):
            return f", or give the replicas {VARIABLE}=1 in their environment"
        return ""

    def check_supported(self, strategy: str, arguments: TrainArguments) -> None:
        """Check that this Keras supports the strategy and the options.

        Raises:
            FinalError: it does not support one of them; the message says which.
        """

    def check_callbacks(self, module: str) -> None:
        """Check that this Keras calls the callbacks of the user's ``module``.

        Raises:
            FinalError: it does not.
        """


def _build_symbolically(model: keras.Model, batch: Any) -> None:
    """Create every variable of ``model``, for batches of the element spec ``batch``."""
    symbols = tf.nest.map_structure(
        lambda spec: keras.KerasTensor(spec.shape, spec.dtype.name), batch
    )
    try:
        keras3.build_symbolically(model, symbols)
    except RuntimeError:
        # A model with its own train_step may have no call; its step builds it.
        if not has_custom_step(model):
            raise


def _check_methods(model: keras.Model, module: str) -> None:
    """Check that the model can be trained by the steps of the loop.

    Raises:
        FinalError: it relies on ``keras.distribution``, or has methods of its own in place of those
            by which Keras calls steps.
    """
    for name in ("fit", "make_train_function", "train_on_batch"):
        if getattr(getattr(model, name), "__func__", None) is not getattr(keras.Model, name):
            raise FinalError(
                f"{type(model).__name__}, which build_model of {module!r} returned, has a {name} "
                "of its own, which is not called here; override train_step instead"
            )
    if keras.distribution.distribution() is not None:
        raise FinalError(
            f"build_model of {module!r} sets keras.distribution, which shards nothing under "
            "TensorFlow; leave it out, and choose a strategy of the job's instead"
        )
    if model.run_eagerly:
        print("run_eagerly=True has no effect here: every step is compiled", flush=True)


def check_has_weights(model: Any, module: str) -> None:
    """Check that training can change a weight of the model; a FinalError otherwise."""
    if not model.trainable_weights:
        raise FinalError(
            f"the model that build_model of {module!r} returned has no trainable weights; "
            "leave trainable=True on the layers that are to learn"
        )


def chosen(environment: Mapping[str, str]) -> KerasAdapter:
    """The Keras that ``environment`` selects.

    Raises:
        FinalError: it selects tf_keras, which is not installed.
    """
    if environment.get(VARIABLE) not in _TRUE:
        return KerasAdapter()
    from aerotrain.training.model.legacy_keras import LegacyKeras

    return LegacyKeras()


#: Chosen once per process, as TensorFlow does.
KERAS: KerasAdapter = chosen(os.environ)  # noqa: TID251 -- TensorFlow reads it at import, too
