"""The user's code for training: one module with ``build_model`` and optional functions.

Optional are ``callbacks(hparams)`` and ``transform(features)``. A transform that needs the
statistics of the data set is ``transform(features, statistics)``.
"""

import inspect
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from types import ModuleType
from typing import Any, Self
from weakref import WeakKeyDictionary

import keras
import numpy as np
import tensorflow as tf

from aerotrain.contract.errors import FinalError, nearest
from aerotrain.data.dataset import load_dataset, load_statistics
from aerotrain.training.input.batches import Transform
from aerotrain.training.model.error_messages import mistakes_explained
from aerotrain.training.model.keras_adapter import KERAS
from aerotrain.user_code import user_module

#: The Keras objects that each user module created when it was imported.
_MADE: WeakKeyDictionary[ModuleType, Mapping[str, int]] = WeakKeyDictionary()


#: The references to an object that only its caller has: a variable, and an argument.
_OWN_REFERENCES = 2


@dataclass
class Reads:
    """The keys that a module has read, or whether it may read any of them."""

    keys: set[str] = field(default_factory=set)
    any: bool = False

    def call(self, function: Callable[[Any], Any], hparams: Mapping[str, Any]) -> Any:
        """The result of ``function(hparams)``, whose reads are recorded.

        A function that keeps its argument may read it later, so nothing is known about its keys.
        """
        recorded = _Recorded(hparams, self)
        result = function(recorded)
        self.any |= sys.getrefcount(recorded) > _OWN_REFERENCES
        return result

    def check(self, module: str, hparams: Mapping[str, Any]) -> None:
        """Check that ``module`` has read every one of ``hparams``.

        Raises:
            FinalError: it has not; the message suggests the nearest key that it reads.
        """
        for key in () if self.any else sorted(hparams.keys() - self.keys):
            unread = f"build_model of {module!r} does not read hparams[{key!r}]"
            raise FinalError(
                f"{unread}{nearest(key, self.keys)}; it reads "
                f"{', '.join(sorted(self.keys)) or 'none'}"
            )


class _Recorded(dict[str, Any]):
    """A dict that records which of its keys are read."""

    def __init__(self, values: Mapping[str, Any], reads: Reads) -> None:
        super().__init__(values)
        self._reads = reads


def _recording(name: str, *, of_all: bool) -> Callable[..., Any]:
    """A method of a dict, which records the key that it reads, or that it may read any."""

    def recorded(self: _Recorded, *arguments: Any) -> Any:
        if of_all:
            self._reads.any = True
        else:
            self._reads.keys.add(str(arguments[0]))
        return getattr(dict, name)(self, *arguments)

    return recorded


for _name in ("__getitem__", "__contains__", "get", "pop", "setdefault"):
    setattr(_Recorded, _name, _recording(_name, of_all=False))
# Python calls ``keys`` for ``**hparams``, as there is an __iter__.
for _name in ("__iter__", "keys", "values", "items", "copy", "__or__", "__ror__"):
    setattr(_Recorded, _name, _recording(_name, of_all=True))


def no_callbacks(_hparams: Mapping[str, Any]) -> list[keras.callbacks.Callback]:
    """The callbacks of a module that defines none."""
    return []


@dataclass(frozen=True)
class UserCode:
    """The name of the user's module, and the functions that training uses from it."""

    name: str
    build_model: Any
    transform: Transform
    callbacks: Callable[[Mapping[str, Any]], Any] = no_callbacks
    #: How many Keras objects of each name the module created when it was imported.
    made: Mapping[str, int] = field(default_factory=dict)
    #: The functions of the module by name.
    functions: Mapping[str, Callable[..., Any]] = field(default_factory=dict)
    #: The hyperparameters that these functions have read.
    reads: Reads = field(default_factory=Reads)

    @classmethod
    def load(cls, name: str, data: str = "") -> Self:
        """Import the module ``name`` from the folder of the user's code.

        ``data`` is the URL of the data set that the model is trained on. A transform with the
        parameter ``statistics`` receives that data set's, wherever the model is used.

        Raises:
            FinalError: there is no such module, or it has no ``build_model``.
        """
        with KERAS.internals.counted_names({}) as counts:
            module = user_module(name, "to build the model with")
        # A module is imported only once, and the objects it created remain.
        made = _MADE.setdefault(module, counts)
        if not hasattr(module, "build_model"):
            raise FinalError(
                f"module {name!r} has no function build_model(hparams)"
                f"{nearest('build_model', dir(module))}; add it, returning a compiled model"
            )
        return cls(
            name,
            module.build_model,
            _informed(getattr(module, "transform", None), data),
            getattr(module, "callbacks", no_callbacks),
            made,
            dict(inspect.getmembers(module, inspect.isfunction)),
        )

    def weighing(self, class_weight: Mapping[str, float]) -> Self:
        """The same code, with a transform that gives each example the weight of its class."""
        if not class_weight:
            return self
        return replace(self, transform=_weighted(self.transform, class_weight))

    def build(
        self, hparams: Mapping[str, Any], batch: Any, dtype_policy: str = "float32"
    ) -> keras.Model:
        """The user's model with all variables created, including those of optimizer and metrics.

        Its layers and metrics have the same names each time, such as ``auc``, however many models
        this process has built, because the names are logged.

        ``batch`` is the element spec of the model's batches. ``dtype_policy`` is the Keras dtype
        policy of the layers that set none.

        Raises:
            FinalError: ``build_model`` fails, or returned something that this loop cannot train.
        """
        with KERAS.dtype_policy(dtype_policy), KERAS.internals.counted_names(self.made):
            with mistakes_explained(self.name, self.build_model):
                model = self.reads.call(self.build_model, hparams)
            if not isinstance(model, KERAS.module.Model):
                raise FinalError(
                    f"build_model of {self.name!r} returned {type(model).__name__}; "
                    f"return a {KERAS.name}.Model{KERAS.hint(model)}"
                )
            if not KERAS.internals.is_compiled(model):
                raise FinalError(
                    f"the model that build_model of {self.name!r} returned is not compiled; "
                    "call model.compile(optimizer=…, loss=…, metrics=[…]) before you return it"
                )
            with mistakes_explained(self.name, self.build_model, batch):
                KERAS.complete(model, batch, self.name)
        return model


def _informed(transform: Any, data: str) -> Transform:
    """The transform with the statistics of the data set at ``data``, if it has that parameter.

    Without a transform, the label is that of the data set.
    """
    if transform is None:
        return partial(features_and_label, label=load_dataset(data).label if data else "label")
    if "statistics" not in inspect.signature(transform).parameters:
        return transform
    statistics = load_statistics(data) if data else {}
    if not statistics:
        raise FinalError(
            f"transform takes statistics, and the data set {data or '(none)'} has none; prepare it "
            "again"
        )
    return partial(transform, statistics=statistics)


def features_and_label(features: dict[str, tf.Tensor], label: str = "label") -> Any:
    """The default transform: the feature ``label`` is the target, all others are inputs.

    Raises:
        FinalError: there is no such feature.
    """
    if label not in features:
        raise FinalError(
            f"no feature is called {label!r} among {', '.join(sorted(features))}; name another in "
            "prepare by label=…, or write a transform(features) that returns (x, y)"
        )
    inputs = {name: value for name, value in features.items() if name != label}
    return next(iter(inputs.values())) if len(inputs) == 1 else inputs, features[label]


def _weighted(transform: Transform, class_weight: Mapping[str, float]) -> Transform:
    """``transform`` with a sample weight for each example, from its class, as ``fit`` does it.

    The class is the label, or the index of the one in a one-hot label. A class without a weight has
    the weight 1.

    Raises:
        FinalError: when called, if batches have no single label, or already have sample weights.
    """
    table = np.ones(max(int(each) for each in class_weight) + 1, np.float32)
    for each, weight in class_weight.items():
        table[int(each)] = weight

    def with_weights(features: dict[str, tf.Tensor]) -> Any:
        x, y, weights = keras.utils.unpack_x_y_sample_weight(transform(features))
        if weights is not None:
            raise FinalError(
                "the transform returns weights of examples, and class_weight asks for others; "
                "leave one of them out"
            )
        if not isinstance(y, tf.Tensor):
            raise FinalError(
                f"class_weight needs one label for each example, and the transform returns "
                f"{type(y).__name__}; return sample weights from the transform instead"
            )
        labels = _classes(y)
        known = tf.logical_and(labels >= 0, labels < len(table))
        return x, y, tf.where(known, tf.gather(table, tf.where(known, labels, 0)), 1.0)

    return with_weights


def _classes(y: tf.Tensor) -> tf.Tensor:
    """The class of each example: the label, or the index of the one in a one-hot label."""
    if y.shape.rank > 1 and y.shape[-1] != 1:
        return tf.argmax(y, axis=-1)
    numbers = tf.reshape(y, [-1])
    return tf.cast(numbers if y.dtype.is_integer else tf.round(numbers), tf.int64)


def check_classes(class_weight: Mapping[str, float], model: Any, batch: Any) -> None:
    """Check that the labels of ``batch`` are classes, and that the model has those of the weights.

    Raises:
        FinalError: a label is no whole number, or the model has no output for a class.
    """
    y = batch[1]
    if y.dtype.is_floating and (fractions := y[y != tf.round(y)].numpy()).size:
        raise FinalError(
            f"class_weight needs labels that are classes, and one of the first is "
            f"{fractions[0]:g}; leave it out, or return sample weights from the transform instead"
        )
    shapes: list[Any] = [tuple(y.shape), getattr(model, "output_shape", None)]  # not of a subclass
    wide = [each for each in shapes if isinstance(each, tuple) and len(each) > 1]
    counts = [each[-1] for each in wide if each[-1] not in (None, 1)]
    unknown = [each for each in class_weight if counts and int(each) >= counts[0]]
    if unknown:
        raise FinalError(
            f"class_weight names the class {unknown[0]}, and the model has the classes 0 to "
            f"{counts[0] - 1}; correct the number"
        )
