"""The metadata of a checkpoint, and checks that it belongs to this training and its model."""

import hashlib
import re
from collections.abc import Mapping, Sequence
from difflib import SequenceMatcher
from typing import Any

import keras

from aerotrain.contract.errors import FinalError
from aerotrain.contract.job import Job
from aerotrain.contract.replicas import Role
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


def cluster_config(job: Job) -> dict[str, Any]:
    """The cluster of a training, which may change when it resumes."""
    workers, ps = job.count(Role.WORKER), job.count(Role.PS)
    return {"strategy": job.strategy, "workers": workers, "ps": ps}


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


def check_same_config(url: str, was: Mapping[str, Any], now: Mapping[str, Any]) -> None:
    """Check that the checkpoint ``url`` was made with the same arguments.

    Raises:
        FinalError: some arguments have changed; the message names each.
    """
    changes = _changes(was, now)
    changes += [f"{key} was {was[key]!r} and is not given" for key in was if key not in now]
    if changes:
        raise FinalError(
            f"the checkpoint {url} is of another training: {'; '.join(changes)}; begin a new run, "
            "or delete that run's checkpoints"
        )


def check_same_code(url: str, was: Mapping[str, str], module: str) -> None:
    """Check that the checkpoint ``url`` was made by the user's code as it is, given its hashes.

    Raises:
        FinalError: a file has changed; the message names each, and how to go on.
    """
    if changed := changed_code(was, module):
        raise FinalError(
            f"{' and '.join(changed)} changed after the checkpoint {url} was made, so that its "
            "weights are not those of the code of now: undo the change to continue, or begin a new "
            f"run, which takes these weights if start_from is {url}"
        )


def check_same_model(
    url: str, about: Mapping[str, Any], cluster: Mapping[str, Any], model: keras.Model
) -> None:
    """Check that the checkpoint ``url`` with the metadata ``about`` is of the same model.

    Raises:
        FinalError: a variable or the optimizer differs; the message names the first difference.
    """
    was, now = about["model"], model_config(model)
    change = _first_change(was["variables"], now["variables"])
    if change is None and was["optimizer"] != now["optimizer"]:
        change = f"its optimizer was {was['optimizer']} and is {now['optimizer']}"
    if change is not None:
        strategy = about.get("setting", {}).get("strategy")
        made = f", made under {strategy!r}," if strategy != cluster.get("strategy") else ""
        raise FinalError(
            f"the checkpoint {url}{made} is of another model than build_model returns now: "
            f"{change}; undo the change, or begin a new run"
        )


def print_cluster_changes(was: Mapping[str, Any], now: Mapping[str, Any]) -> None:
    """Print what has changed in the cluster since the checkpoint."""
    changes = _changes(was, now)
    if changes:
        print(
            f"the checkpoint was made in another cluster: {'; '.join(changes)}. The weights, the "
            "position in the data and the global batch are the same; only their division among "
            "the replicas differs",
            flush=True,
        )


def _changes(was: Mapping[str, Any], now: Mapping[str, Any]) -> list[str]:
    """What has changed of the values that both have."""
    return [
        f"{key} was {was[key]!r} and is {value!r}"
        for key, value in now.items()
        if key in was and was[key] != value
    ]


def _first_change(was: Sequence[Any], now: Sequence[Any]) -> str | None:
    """The first difference between two lists of variables, each ``[path, shape]``."""
    # Without the numbers by which Keras distinguishes the layers of one process.
    before, after = (
        [(re.sub(r"_\d+(?=/|$)", "", path), tuple(shape)) for path, shape in each]
        for each in (was, now)
    )
    for kind, start, end, at, until in SequenceMatcher(
        None, before, after, autojunk=False
    ).get_opcodes():
        gone, new = before[start:end], after[at:until]
        if kind == "replace" and gone[0][0] == new[0][0]:
            return f"{now[at][0]} was of shape {gone[0][1]} and is of shape {new[0][1]}"
        if kind in ("replace", "delete"):
            return f"it had {was[start][0]} of shape {gone[0][1]}, which there is no more"
        if kind == "insert":
            return f"{now[at][0]} of shape {new[0][1]} is new"
    return None
