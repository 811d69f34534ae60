"""The Keras that a process trains with: Keras 3, or tf_keras if TF_USE_LEGACY_KERAS is set.

All differences between the two are in ``KERAS``; the loop is the same.
"""

import os
from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import Any, Protocol

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

#: How many objects of each name a process has created.
Names = Mapping[str, int]


class KerasAdapter(Protocol):
    """One Keras: its models, and how they are built, trained and called."""

    #: The name of the module that users import.
    name: str

    def seed(self, seed: int) -> None:
        """Seed Python, NumPy, TensorFlow, and the initial weights of models."""

    def dtype_policy(self, policy: str) -> AbstractContextManager[None]:
        """A context that sets the dtype policy of new layers."""

    def is_model(self, value: Any) -> bool:
        """Whether ``value`` is a model of this Keras."""

    def is_compiled(self, model: Any) -> bool:
        """Whether the model has an optimizer and losses."""

    def naming(self, made: Names) -> AbstractContextManager[dict[str, int]]:
        """A context in which default names are counted as if only ``made`` had been created.

        It yields these counts, and keeps them up to date.
        """

    def complete(self, model: Any, batch: Any, module: str) -> None:
        """Create every variable of the model that ``build_model`` of ``module`` returned.

        ``batch`` is the element spec of the model's batches.

        Raises:
            FinalError: no strategy can train the model.
        """

    def step(self, model: Any, counter: tf.Variable, batch: Any) -> TrainStep:
        """The training step of the model; ``counter`` counts the steps."""

    def predict(self, model: Any, x: Any) -> Any:
        """The model's outputs for the batch ``x``, outside of training."""

    def save(self, model: Any, file: Path) -> None:
        """Write the model without its optimizer to a ``.keras`` file, and load it again.

        ``model`` cannot be trained afterwards. Any exception means that the file is of no use.
        """

    def variables(self, model: Any) -> list[tf.Variable]:
        """The TensorFlow variables of the model."""

    def losses(self, model: Any) -> list[Any]:
        """The losses that the model was compiled with."""

    def hint(self, value: Any) -> str:
        """Advice about ``value``, if it is a model of the other Keras; otherwise empty."""

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


class Keras3:
    """Keras 3, which supports everything that the loop needs."""

    name = "keras"

    def seed(self, seed: int) -> None:
        keras.utils.set_random_seed(seed)

    @contextmanager
    def dtype_policy(self, policy: str) -> Iterator[None]:
        before = keras.config.dtype_policy()
        keras.config.set_dtype_policy(policy)
        try:
            yield
        finally:
            keras.config.set_dtype_policy(before)

    def naming(self, made: Names) -> AbstractContextManager[dict[str, int]]:
        return keras3.counted_names(made)

    def is_model(self, value: Any) -> bool:
        return isinstance(value, keras.Model)

    def is_compiled(self, model: keras.Model) -> bool:
        return bool(model.compiled)

    def complete(self, model: keras.Model, batch: Any, module: str) -> None:
        _build_symbolically(model, batch)
        _check_trainable(model, module)

    def step(self, model: keras.Model, counter: tf.Variable, batch: Any) -> TrainStep:
        return step_of(model, counter, batch)

    def predict(self, model: keras.Model, x: Any) -> Any:
        return keras3.call(model, x, training=False)

    def save(self, model: keras.Model, file: Path) -> None:
        model.compiled, model.optimizer = False, None
        model.save(file)
        loaded = keras.saving.load_model(file)
        if len(loaded.weights) != len(model.weights):
            raise ValueError(f"it has {len(loaded.weights)} of {len(model.weights)} weights")

    def variables(self, model: keras.Model) -> list[tf.Variable]:
        return [variable.value for variable in model.variables]

    def losses(self, model: keras.Model) -> list[Any]:
        return keras3.losses(model)

    def hint(self, value: Any) -> str:
        # By name, because tf_keras need not be installed with Keras 3.
        if any(each.__module__.startswith("tf_keras.") for each in type(value).__mro__):
            return f", or give the replicas {VARIABLE}=1 in their environment"
        return ""

    def check_supported(self, strategy: str, arguments: TrainArguments) -> None:
        """Do nothing: each strategy checks what Keras 3 cannot do under it."""

    def check_callbacks(self, module: str) -> None:
        """Do nothing: callbacks are called."""


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


def _check_trainable(model: keras.Model, module: str) -> None:
    """Check that the model can be trained at all, and by the steps of the loop.

    Raises:
        FinalError: it has no trainable weights, relies on ``keras.distribution``, or has methods of
            its own in place of those by which Keras calls steps.
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
    if not model.trainable_weights and not has_custom_step(model):
        raise FinalError(
            f"the model that build_model of {module!r} returned has no trainable weights; "
            "leave trainable=True on the layers that are to learn"
        )
    if model.run_eagerly:
        print("run_eagerly=True has no effect here: every step is compiled", flush=True)


def chosen(environment: Mapping[str, str]) -> KerasAdapter:
    """The Keras that ``environment`` selects.

    Raises:
        FinalError: it selects tf_keras, which is not installed.
    """
    if environment.get(VARIABLE) not in _TRUE:
        return Keras3()
    from aerotrain.training.model.legacy_keras import LegacyKeras

    return LegacyKeras()


#: Chosen once per process, as TensorFlow does.
KERAS: KerasAdapter = chosen(os.environ)  # noqa: TID251 -- TensorFlow reads it at import, too
