"""Checks that a checkpoint belongs to this training: to its recipe and its current model."""

import re
from collections.abc import Mapping, Sequence
from difflib import SequenceMatcher
from typing import Any

import keras

from aerotrain.contract.errors import FinalError


def described(model: keras.Model) -> dict[str, Any]:
    """The description of a model in a manifest, which distinguishes it from others."""
    variables = [[getattr(each, "path", each.name), list(each.shape)] for each in model.weights]
    return {"optimizer": type(model.optimizer).__name__, "variables": variables}


def check_same_recipe(url: str, was: Mapping[str, Any], now: Mapping[str, Any]) -> None:
    """Check that the checkpoint ``url`` was made with the same arguments.

    Raises:
        FinalError: some arguments have changed; the message names each.
    """
    changes = [
        f"{key} was {was[key]!r} and is {value!r}"
        for key, value in now.items()
        if key in was and was[key] != value
    ]
    # An argument that an earlier version had under another name.
    changes += [f"{key} was {was[key]!r} and is not given" for key in was if key not in now]
    if changes:
        raise FinalError(
            f"the checkpoint {url} is of another training: {'; '.join(changes)}; begin a new run, "
            "or delete that run's checkpoints"
        )


def check_same_model(
    url: str, about: Mapping[str, Any], setting: Mapping[str, Any], model: keras.Model
) -> None:
    """Check that the checkpoint ``url`` with the metadata ``about`` is of the same model.

    Raises:
        FinalError: a variable or the optimizer differs; the message names the first difference.
    """
    if "model" not in about:
        return  # of an earlier version without a description; TensorFlow compares what it reads
    was, now = about["model"], described(model)
    change = _first_change(was["variables"], now["variables"])
    if change is None and was["optimizer"] != now["optimizer"]:
        change = f"its optimizer was {was['optimizer']} and is {now['optimizer']}"
    if change is not None:
        strategy = about.get("setting", {}).get("strategy")
        made = f", made under {strategy!r}," if strategy != setting.get("strategy") else ""
        raise FinalError(
            f"the checkpoint {url}{made} is of another model than build_model returns now: "
            f"{change}; undo the change, or begin a new run"
        )


def tell_changes(was: Mapping[str, Any], now: Mapping[str, Any]) -> None:
    """Print what has changed in the cluster since the checkpoint."""
    changes = [
        f"{key} was {was[key]!r} and is {value!r}"
        for key, value in now.items()
        if key in was and was[key] != value
    ]
    if changes:
        print(
            f"the checkpoint was made in another setting: {'; '.join(changes)}. The weights and "
            "the position in the data are the same, and so is the global batch; who computes "
            "which part of it is not",
            flush=True,
        )


def _first_change(was: Sequence[Any], now: Sequence[Any]) -> str | None:
    """The first difference between two lists of variables, each ``[path, shape]``."""
    before, after = ([(_plain(path), tuple(shape)) for path, shape in each] for each in (was, now))
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


def _plain(path: str) -> str:
    """The path without the numbers by which Keras distinguishes the layers of one process."""
    return re.sub(r"_\d+(?=/|$)", "", path)
