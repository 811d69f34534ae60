"""Private names of tf_keras, tried with 2.21.0; imported only where tf_keras is installed."""

import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import tensorflow as tf
import tf_keras
from tf_keras.src import backend
from tf_keras.src.utils import losses_utils


@contextmanager
def counted_names(made: Mapping[str, int]) -> Iterator[dict[str, int]]:
    """A context in which default names are counted as if only ``made`` had been created.

    It yields these counts, and keeps them up to date.

    https://github.com/keras-team/tf-keras/blob/v2.21.0/tf_keras/backend.py
    """
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


def is_compiled(model: tf_keras.Model) -> bool:
    """Whether ``compile`` was called.

    https://github.com/keras-team/tf-keras/blob/v2.21.0/tf_keras/engine/training.py
    """
    return bool(model._is_compiled)


def losses(model: tf_keras.Model) -> list[Any]:
    """The losses that the model was compiled with.

    https://github.com/keras-team/tf-keras/blob/v2.21.0/tf_keras/engine/compile_utils.py
    """
    return list(filter(None, tf.nest.flatten(model.compiled_loss._losses)))


def parts(metric: Any) -> list[Any]:
    """A metric and the metrics in it, which are layers.

    https://github.com/keras-team/tf-keras/blob/v2.21.0/tf_keras/engine/base_layer.py
    """
    return list(metric._flatten_layers())


_SCALING = threading.local()
_scale = losses_utils.scale_loss_for_distribution


@contextmanager
def losses_of_one_replica() -> Iterator[None]:
    """A scope in which no loss is divided by the number of replicas.

    https://github.com/keras-team/tf-keras/blob/v2.21.0/tf_keras/utils/losses_utils.py
    """
    _SCALING.off = True
    try:
        yield
    finally:
        _SCALING.off = False


losses_utils.scale_loss_for_distribution = lambda loss: (
    loss if getattr(_SCALING, "off", False) else _scale(loss)
)
