"""Requests of TensorFlow Serving's REST API as arrays, and what the answer to a wrong one says."""

import json
import re

import numpy as np
import pytest

from aerotrain.data.dataset import Feature
from aerotrain.serving.rest import BadRequestError, inputs_of, instances_of

INPUTS = {"town": Feature("string"), "rooms": Feature("int64"), "area": Feature("float32")}
WHOLE = {"town": "Graz", "rooms": 3, "area": 80.0}
TAKES = (
    "the model takes area (float32), rooms (int64), town (string); bytes, such as an image, as "
    '{"b64": "…"}'
)
PAIRS = {"x": Feature("float32", (2,))}


def but(**values):
    """A record with other values, and without those that are ``...``."""
    return {name: each for name, each in {**WHOLE, **values}.items() if each is not ...}


def test_the_name_of_a_column_leads_to_the_input_that_it_is():
    inputs = {"Gr__e__cm_": Feature("float32"), "x_lter_als_30_": Feature("string")}
    with pytest.raises(BadRequestError, match=r"did you mean 'Gr__e__cm_'\?, .*'x_lter_als_30_'"):
        inputs_of({"inputs": {"Größe (cm)": [1.0], "Älter als 30?": ["no"]}}, inputs)


@pytest.mark.parametrize(
    ("request_", "says"),
    [
        ([1], f"either 'instances', a list of records, or 'inputs', the values of all re.*{TAKES}"),
        ({"inputs": [], "instances": []}, "either 'instances'"),
        ({"instances": []}, "'instances' must be a list of at least one record"),
        ({"instances": [WHOLE, 3]}, f"record 1 must name its inputs; {TAKES}"),
        (
            {"instances": [WHOLE, but(rooms=..., room=3)]},
            f"record 1 .* missing: rooms; unknown: room, did you mean 'rooms'\\?; {TAKES}",
        ),
        ({"inputs": {"town": ["Graz"]}}, f"missing: area, rooms; {TAKES}"),
        (
            {"inputs": {"town": ["a", "b"], "rooms": [1, 2], "area": [1.0]}},
            "inputs have different numbers of records: area has 1, rooms has 2, town has 2",
        ),
        (
            {"instances": [WHOLE, but(rooms="3")]},
            "the input 'rooms' of record 1, counted from 0: \"3\" is not of the type int64",
        ),
        ({"instances": [but(rooms=1.5)]}, "1.5 is not of the type int64"),
        ({"instances": [but(rooms=True)]}, "true is not of the type int64"),
        ({"instances": [but(area=None)]}, "of the type float32.*or NaN"),
        ({"instances": [but(area="1.234,50 €")]}, '"1.234,50 €" is not .* such as 1234.5, without'),
        ({"instances": [but(rooms="01.02.2026")]}, "of a date, the days since 1970-01-01"),
        ({"instances": [but(town=None)]}, 'of the type string.*a missing one as ""'),
        ({"instances": [but(town={"b64": "%"})]}, "is not of the type string"),
        ({"instances": [but(rooms=2**70)]}, "the input 'rooms' has a number beyond int64"),
        (
            {"inputs": {"town": ["a", "b"], "rooms": [1, 2], "area": [[1, 2], [3, "x"]]}},
            "the input 'area' of record 1",
        ),
        (
            {"inputs": {"town": ["a"], "rooms": [[1]], "area": [1]}},
            r"'rooms' has the shape \(1, 1\), and must have \(\) for each record",
        ),
    ],
)
def test_an_answer_names_the_input_the_record_and_what_the_model_takes(request_, says):
    takes = says.replace(TAKES, re.escape(TAKES))
    with pytest.raises(BadRequestError, match=takes):
        inputs_of(request_, INPUTS)


@pytest.mark.parametrize(
    ("values", "says"),
    [
        (3.0, r"the shape \(\), and must have \(2,\)"),
        ([[1, 2, 3]], r"the shape \(1, 3\), and must have \(2,\) for each record"),
        ([[1, 2], [1]], "beside lists of another length"),
        ([1, [2]], "beside lists of another length"),
        ([[1, 2], [[3], [4]]], "beside lists of another length"),
        ([[1, {"b64": "YQ=="}]], "not of the type float32"),
    ],
)
def test_values_of_another_shape_are_no_input(values, says):
    with pytest.raises(BadRequestError, match=says):
        inputs_of({"inputs": values}, PAIRS)


def test_a_single_input_needs_no_name_and_numbers_may_be_nan():
    for request in (
        {"instances": [[1, 2.5], [float("nan"), -3]]},
        {"instances": [{"x": [1, 2.5]}, {"x": [float("nan"), -3]}]},
        {"inputs": {"x": [[1, 2.5], [float("nan"), -3]]}},
    ):
        arrays, rows = inputs_of(request, PAIRS)
        np.testing.assert_array_equal(arrays["x"], np.float32([[1, 2.5], [np.nan, -3]]))
        assert rows == ("instances" in request)


def test_rows_of_texts_and_bytes_are_read_back_equal():
    inputs = {
        "text": np.array([b"Z\xc3\xbcrich", b""], object),
        "picture": np.array([b"\xff\xd8", b"a"], object),
        "size": np.array([[0.1, 2.0], [3.0, 4.0]], np.float32),
    }
    schema = {"text": Feature("string"), "picture": Feature("string"), **PAIRS}
    schema["size"] = schema.pop("x")
    rows = json.loads(json.dumps(instances_of(inputs)))
    assert rows[0]["text"] == "Zürich"
    assert rows[0]["size"] == [0.1, 2.0]
    assert rows[1]["picture"] == {"b64": "YQ=="}
    read, _ = inputs_of({"instances": rows}, schema)
    for name, array in inputs.items():
        np.testing.assert_array_equal(read[name], array)
