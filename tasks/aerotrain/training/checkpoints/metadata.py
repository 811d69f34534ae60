"""The metadata of a checkpoint, and the check that it belongs to this training and its model."""

import hashlib
import re
from collections import Counter
from collections.abc import Mapping
from typing import Any

import keras

from aerotrain.contract.errors import FinalError
from aerotrain.contract.training import TrainArguments
from aerotrain.training.internals import keras3
from aerotrain.user_code import changed_code

#: The arguments, besides hyperparameters, by which the steps of one training differ from another's.
#: Others, such as the microbatches or the interval of checkpoints, may change when it resumes.
_DETERMINING = (
    "data",
    "dtype_policy",
    "start_from",
    "class_weight",
    "drop_remainder",
    "synchronized_batch_norm",
)


def training_config(arguments: TrainArguments) -> dict[str, Any]:
    """The arguments that determine the course of a training, except its length and its strategy."""
    hparams = {key: value for key, value in arguments.all_hparams.items() if key != "epochs"}
    return {**{name: getattr(arguments, name) for name in _DETERMINING}, **hparams}


def model_config(model: keras.Model) -> dict[str, Any]:
    """The description of a model in a manifest, which distinguishes it from others.

    ``places`` are those of its ``variables`` in the checkpoint, which has random states, too.
    """
    variables = [[path_of(each), list(each.shape)] for each in model.weights]
    places = {id(each): place for place, each in enumerate(model.variables)}
    return {
        "optimizer": type(model.optimizer).__name__,
        "variables": variables,
        "places": [places[id(each)] for each in model.weights],
    }


def words_of(model: keras.Model) -> list[str]:
    """A hash of the words of each lookup layer of a model."""
    kinds = (
        keras.layers.StringLookup,
        keras.layers.IntegerLookup,
        keras.layers.TextVectorization,
    )
    lookups = [each for each in keras3.layers(model) if isinstance(each, kinds)]
    words = ("\0".join(map(str, each.get_vocabulary())) for each in lookups)
    return [hashlib.sha256(each.encode()).hexdigest()[:16] for each in words]


def path_of(variable: Any) -> str:
    """The path of a variable, such as ``dense/kernel``; tf_keras has names instead."""
    return str(getattr(variable, "path", variable.name))


def check_same_training(
    url: str, about: Mapping[str, Any], arguments: TrainArguments, model: keras.Model
) -> None:
    """Check that the checkpoint ``url`` with the metadata ``about`` is of this training.

    Raises:
        FinalError: an argument, the user's code or the model has changed; the message says how.
    """
    changes = _changes(about["recipe"], training_config(arguments))
    if changes:
        raise FinalError(
            f"the checkpoint {url} is of another training: {'; '.join(changes)}; begin a new run, "
            "or delete that run's checkpoints"
        )
    if changed := changed_code(about["code"], arguments.model):
        raise FinalError(
            f"{' and '.join(changed)} changed after the checkpoint {url} was made, so that its "
            "weights are not those of the code of now: undo the change to continue, or begin a new "
            f"run, which takes these weights if start_from is {url}"
        )
    if change := _first_change(about["model"], model_config(model)):
        raise FinalError(
            f"the checkpoint {url} is of another model than build_model returns now: "
            f"{change}; undo the change, or begin a new run"
        )


def _changes(was: Mapping[str, Any], now: Mapping[str, Any]) -> list[str]:
    """What has changed of the arguments; one that is new has the meaning of before."""
    changed = [key for key in now if key in was and was[key] != now[key]]
    return [
        *(f"{key} was {was[key]!r} and is {now[key]!r}" for key in changed),
        *(f"{key} was {was[key]!r} and is not given" for key in was if key not in now),
    ]


def _first_change(was: Mapping[str, Any], now: Mapping[str, Any]) -> str | None:
    """The first difference between two models, as ``model_config`` describes them."""
    # Without the numbers by which Keras distinguishes the layers of one process.
    before, after = (
        [(re.sub(r"_\d+(?=/|$)", "", path), tuple(shape)) for path, shape in each["variables"]]
        for each in (was, now)
    )
    gone, new = [*(Counter(before) - Counter(after))], [*(Counter(after) - Counter(before))]
    if gone and new and gone[0][0] == new[0][0]:
        return f"{new[0][0]} was of shape {gone[0][1]} and is of shape {new[0][1]}"
    if gone:
        return f"it had {gone[0][0]} of shape {gone[0][1]}, which there is no more"
    if new:
        return f"{new[0][0]} of shape {new[0][1]} is new"
    if before != after:
        return "its layers are in another order"
    if was["optimizer"] != now["optimizer"]:
        return f"its optimizer was {was['optimizer']} and is {now['optimizer']}"
    return None
