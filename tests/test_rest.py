"""Requests of TensorFlow Serving's REST API that do not fit: what the answer says to do."""

import pytest

from aerotrain.data.dataset import Feature
from aerotrain.serving.rest import BadRequestError, inputs_of

INPUTS = {"town": Feature("string"), "rooms": Feature("int64"), "area": Feature("float32")}
WHOLE = {"town": "Graz", "rooms": 3, "area": 80.0}
TAKES = "the model takes area (float32), rooms (int64), town (string)"


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
        ({"instances": [but(rooms=...)]}, f"missing: rooms; {TAKES}"),
        (
            {"instances": [WHOLE, but(rooms=..., room=3)]},
            f"missing: rooms; unknown: room, did you mean 'rooms'?; {TAKES}",
        ),
        ({"instances": [but(price=1)]}, f"unknown: price; {TAKES}"),
        ({"inputs": {"town": ["Graz"]}}, f"missing: area, rooms; {TAKES}"),
        (
            {"instances": [WHOLE, but(rooms="3")]},
            "is not of expected type: int64; this is the input 'rooms' of record 1, counted from 0",
        ),
        ({"instances": [but(rooms=None)]}, "Type: Null is not of expected type: int64; this is"),
        (
            {"instances": [but(area=None)]},
            "type: float; send a missing number as NaN; this is the input 'area' of record 0",
        ),
        ({"instances": [but(town=None)]}, "send a missing text as \"\"; this is the input 'town'"),
        ({"instances": [but(rooms=2**70)]}, "this is in the input 'rooms'"),
        (
            {"inputs": {"town": ["a", "b"], "rooms": [1, 2], "area": [[1, 2], [3, "x"]]}},
            "this is the input 'area' of record 1",
        ),
    ],
)
def test_an_answer_names_the_input_the_record_and_what_the_model_takes(request_, says):
    with pytest.raises(BadRequestError) as error:
        inputs_of(request_, INPUTS)
    assert says in str(error.value)
