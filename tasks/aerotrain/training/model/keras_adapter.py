"""The Keras that a process trains with: Keras 3, or tf_keras if TF_USE_LEGACY_KERAS is set.

All differences between the two are in ``KERAS``; the loop is the same.
"""

import os
from collections import defaultdict
from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from typing import Any, Protocol

import keras
import tensorflow as tf
from keras.src.backend.common import global_state

from aerotrain.training.steps.compiled import check_trainable, symbolically_built
from aerotrain.training.steps.custom import step_of
from aerotrain.training.steps.step import TrainStep

#: The variable by which TensorFlow chooses, and its values that select tf_keras.
VARIABLE = "TF_USE_LEGACY_KERAS"
_TRUE = ("1", "true", "True")

#: Keras's counters of names, such as ``auc`` and ``auc_1``. The only public way to change them is
#: to reset all: https://github.com/keras-team/keras/blob/v3.15.1/keras/src/utils/naming.py
_COUNTS = "object_name_uids"

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

    def variables(self, model: Any) -> list[tf.Variable]:
        """The TensorFlow variables of the model."""

    def losses(self, model: Any) -> list[Any]:
        """The losses that the model was compiled with."""

    def hint(self, value: Any) -> str:
        """Advice about ``value``, if it is a model of the other Keras; otherwise empty."""

    def refuse(self, strategy: str, *, jit_compile: bool) -> None:
        """Check that this Keras supports the strategy and XLA.

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

    @contextmanager
    def naming(self, made: Names) -> Iterator[dict[str, int]]:
        before = global_state.get_global_attribute(_COUNTS)
        counts = defaultdict(int, made)
        global_state.set_global_attribute(_COUNTS, counts)
        try:
            yield counts
        finally:
            global_state.set_global_attribute(_COUNTS, before)

    def is_model(self, value: Any) -> bool:
        return isinstance(value, keras.Model)

    def is_compiled(self, model: keras.Model) -> bool:
        return bool(model.compiled)

    def complete(self, model: keras.Model, batch: Any, module: str) -> None:
        symbolically_built(model, batch)
        check_trainable(model, module)

    def step(self, model: keras.Model, counter: tf.Variable, batch: Any) -> TrainStep:
        return step_of(model, counter, batch)

    def predict(self, model: keras.Model, x: Any) -> Any:
        return model(x, training=False) if model._call_has_training_arg else model(x)

    def variables(self, model: keras.Model) -> list[tf.Variable]:
        return [variable.value for variable in model.variables]

    def losses(self, model: keras.Model) -> list[Any]:
        return [each.loss for each in getattr(model._compile_loss, "_flat_losses", None) or ()]

    def hint(self, value: Any) -> str:
        # By name, because tf_keras need not be installed with Keras 3.
        if any(each.__module__.startswith("tf_keras.") for each in type(value).__mro__):
            return f", or give the replicas {VARIABLE}=1 in their environment"
        return ""

    def refuse(self, strategy: str, *, jit_compile: bool) -> None:
        """Do nothing: each strategy checks what Keras 3 cannot do under it."""

    def check_callbacks(self, module: str) -> None:
        """Do nothing: callbacks are called."""


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
KERAS: KerasAdapter = chosen(os.environ)
