"""The user's side of training: one module with ``build_model``, and perhaps ``transform``."""

import importlib
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Self

import keras
import tensorflow as tf

from aerotrain.contract.errors import FinalError
from aerotrain.contract.strategy import nearest
from aerotrain.training.input import Transform


@dataclass(frozen=True)
class UserCode:
    """The user's module by its name, and the two functions that training takes from it."""

    name: str
    build_model: Any
    transform: Transform

    @classmethod
    def load(cls, name: str) -> Self:
        """Import the module ``name`` from the folder of the user's code.

        Raises:
            FinalError: there is no such module, or it has no ``build_model``.
        """
        try:
            module = importlib.import_module(name)
        except ModuleNotFoundError as error:
            if error.name != name:
                raise
            raise FinalError(
                f"there is no module {name!r} to build the model with; see whether the folder "
                "that holds it is the job's code folder"
            ) from error
        if not hasattr(module, "build_model"):
            raise FinalError(
                f"module {name!r} has no function build_model(hparams)"
                f"{nearest('build_model', dir(module))}; add it, returning a compiled model"
            )
        return cls(name, module.build_model, getattr(module, "transform", features_and_label))

    def build(self, hparams: Mapping[str, Any], batch: Any) -> keras.Model:
        """The user's model with every variable made, those of optimizer and metrics too.

        ``batch`` is the element spec of the batches that the model will be given.

        Raises:
            FinalError: ``build_model`` returned something that this loop cannot train.
        """
        model = self.build_model(dict(hparams))
        if not isinstance(model, keras.Model):
            raise FinalError(
                f"build_model of {self.name!r} returned {type(model).__name__}; "
                "return a keras.Model"
            )
        if not model.compiled:
            raise FinalError(
                f"the model that build_model of {self.name!r} returned is not compiled; "
                "call model.compile(optimizer=…, loss=…, metrics=[…]) before you return it"
            )
        if type(model).train_step is not keras.Model.train_step:
            raise FinalError(
                f"{type(model).__name__} has a train_step of its own, which this loop would not "
                "call; override compute_loss instead, or leave train_step out"
            )
        model._symbolic_build(
            data_batch=tf.nest.map_structure(
                lambda spec: keras.KerasTensor(spec.shape, spec.dtype.name), batch
            )
        )
        return model


def features_and_label(features: dict[str, tf.Tensor]) -> Any:
    """The transform of a module that has none: the feature ``label`` is what is learnt.

    Raises:
        FinalError: no feature is called ``label``.
    """
    if "label" not in features:
        raise FinalError(
            f"no feature is called 'label' among {', '.join(sorted(features))}; write a "
            "transform(features) that returns (x, y)"
        )
    inputs = {name: value for name, value in features.items() if name != "label"}
    return next(iter(inputs.values())) if len(inputs) == 1 else inputs, features["label"]
