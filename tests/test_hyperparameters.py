"""Hyperparameters: every key that is given must be read by the user's module."""

import copy
import json

import pytest

from aerotrain.contract.errors import FinalError
from aerotrain.training.model.code import Reads

GIVEN = {"units": 8, "drop": 0.1}


def reads_of(*functions):
    reads = Reads()
    for each in functions:
        reads.call(each, GIVEN)
    return reads


def test_a_key_that_no_function_of_the_module_reads_is_refused_with_the_nearest_one():
    reads = reads_of(lambda hparams: hparams["units"], lambda hparams: hparams.get("dropout", 0.5))
    with pytest.raises(
        FinalError,
        match=r"build_model of 'm' does not read hparams\['drop'\], did you mean 'dropout'\?; it "
        "reads dropout, units",
    ):
        reads.check("m", GIVEN)
    reads.check("m", {"units": 8})


def test_a_module_that_reads_nothing_is_named():
    with pytest.raises(FinalError, match="it reads none"):
        reads_of(lambda hparams: None).check("m", GIVEN)


@pytest.mark.parametrize(
    "read",
    [
        lambda hparams: dict(**hparams),
        dict,
        lambda hparams: {**hparams},
        lambda hparams: hparams | {},
        lambda hparams: list(hparams.items()),
        copy.copy,
        copy.deepcopy,
        json.dumps,
        lambda hparams: lambda: hparams["units"],
    ],
    ids=["a call", "dict", "a display", "a union", "items", "copy", "deepcopy", "JSON", "kept"],
)
def test_a_module_that_takes_all_of_them_or_keeps_them_may_read_any(read):
    kept = []
    reads = Reads()
    kept.append(reads.call(read, GIVEN))
    reads.check("m", GIVEN)


def test_the_values_are_those_that_were_given():
    seen = []

    def build(hparams):
        seen.append((hparams["units"], hparams.get("none", 3), "drop" in hparams, len(hparams)))
        match hparams:
            case {"drop": drop}:
                seen.append(drop)

    reads_of(build).check("m", GIVEN)
    assert seen == [(8, 3, True, 2), 0.1]
