"""Which Keras a process trains with: Keras 3, or tf_keras where TF_USE_LEGACY_KERAS asks for it.

Everything that the two do differently goes through ``KERAS``; the loop is the same.
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

#: The variable by which TensorFlow chooses, and the values at which it takes tf_keras.
VARIABLE = "TF_USE_LEGACY_KERAS"
_TRUE = ("1", "true", "True")

#: Where Keras counts what it has named, as ``auc`` and ``auc_1``. There is no public way to it but
#: to forget all: https://github.com/keras-team/keras/blob/v3.15.1/keras/src/utils/naming.py
_COUNTS = "object_name_uids"

#: How many objects of each name a process has made.
Names = Mapping[str, int]


class KerasAdapter(Protocol):
    """A Keras: what its models are, and how they are built, trained and called."""

    #: What users import.
    name: str

    def seed(self, seed: int) -> None:
        """Seed Python, NumPy, TensorFlow, and the initial weights of models."""

    def dtype_policy(self, policy: str) -> AbstractContextManager[None]:
        """A context that gives new layers that policy."""

    def is_model(self, value: Any) -> bool:
        """Whether ``value`` is a model of this Keras."""

    def is_compiled(self, model: Any) -> bool:
        """Whether the model was given an optimizer and losses."""

    def naming(self, made: Names) -> AbstractContextManager[dict[str, int]]:
        """A context in which what has no name of its own is named as if ``made`` were all there is.

        It gives the same counts, and keeps them up to date.
        """

    def complete(self, model: Any, batch: Any, module: str) -> None:
        """Make every variable of the model that ``build_model`` of ``module`` returned.

        ``batch`` is the element spec of the batches that it will be given.

        Raises:
            FinalError: no strategy can train the model.
        """

    def step(self, model: Any, counter: tf.Variable, batch: Any) -> TrainStep:
        """One training step of the model; ``counter`` counts them."""

    def predict(self, model: Any, x: Any) -> Any:
        """What the model makes of the batch ``x`` outside of training."""

    def variables(self, model: Any) -> list[tf.Variable]:
        """TensorFlow's variables of the model."""

    def losses(self, model: Any) -> list[Any]:
        """The losses that the model was compiled with."""

    def hint(self, value: Any) -> str:
        """What to do about ``value``, if it is a model of the other Keras; else nothing."""

    def refuse(self, strategy: str, *, jit_compile: bool) -> None:
        """Refuse what this Keras does not do here.

        Raises:
            FinalError: the strategy, or XLA, as the message says.
        """

    def check_callbacks(self, module: str) -> None:
        """Refuse the callbacks of the user's ``module``, if none are called.

        Raises:
            FinalError: none are.
        """


class Keras3:
    """Keras 3, which brings everything that the loop relies on."""

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
        # By name: where Keras 3 is chosen, tf_keras need not be installed.
        if any(each.__module__.startswith("tf_keras.") for each in type(value).__mro__):
            return f", or give the replicas {VARIABLE}=1 in their environment"
        return ""

    def refuse(self, strategy: str, *, jit_compile: bool) -> None:
        """Nothing: what Keras 3 cannot do under a strategy is refused where it is known."""

    def check_callbacks(self, module: str) -> None:
        """Nothing: they are called."""


def chosen(environment: Mapping[str, str]) -> KerasAdapter:
    """The Keras that ``environment`` asks for.

    Raises:
        FinalError: it asks for tf_keras, which is not installed.
    """
    if environment.get(VARIABLE) not in _TRUE:
        return Keras3()
    from aerotrain.training.model.legacy_keras import LegacyKeras

    return LegacyKeras()


#: Chosen once for the process, as TensorFlow does.
KERAS: KerasAdapter = chosen(os.environ)
