"""Options are declared once; form, checks, command line and docs are derived from them."""

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path

import pytest
from airflow.sdk.exceptions import ParamValidationError

from aerotrain.contract.errors import SpecError
from aerotrain.contract.options import (
    Section,
    check_strategy,
    option,
    options_of,
)
from aerotrain.contract.training import TrainArguments
from aerotrain.contract.validation import Columns, Positive, Seconds, Validated
from aerotrain.standalone.cli import parse
from aerotrain_airflow.params import OPTIONS, training_params
from devtools.pages import options_page, steps_page

DOCS = Path(__file__).parent.parent / "docs"


class Color(StrEnum):
    RED = "red"


@dataclass(frozen=True, kw_only=True)
class Part(Validated):
    TITLE = "a part"

    color: Color


@dataclass(frozen=True, kw_only=True)
class Few(Validated):
    TITLE = "few"

    size: int = option(4, title="Size", help="h", section=Section.DATA, minimum=1, maximum=9)
    rate: float = option(0.5, title="Rate", help="h", section=Section.TRAINING, above=0)
    word: str = option("a", title="Word", help="h", section=Section.DATA, choices=("alpha", "a"))
    most: float | None = option(None, title="Most", help="h", section=Section.DATA, above=0)
    on: bool = option(False, title="On", help="h", section=Section.DATA)
    axes: Mapping[str, int] = option(
        {}, title="Axes", help="h", section=Section.DATA, keys=("x", "y")
    )
    columns: Columns = ()
    shares: Mapping[str, Positive] = field(default_factory=dict)
    parts: tuple[Part, ...] = ()
    limit: Seconds | None = None


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"size": 0}, "size must be a whole number from 1 to 9, got 0"),
        ({"size": True}, "size must be a whole number from 1 to 9, got True"),
        ({"rate": float("nan")}, "rate must be a number above 0, got nan"),
        ({"rate": None}, "rate must be a number above 0, got None"),
        ({"most": -1}, "most must be a number above 0 or null, got -1"),
        ({"word": "alfa"}, "word must be 'alpha' or 'a', got 'alfa', did you mean 'alpha'\\?"),
        ({"on": 1}, "on must be true or false, got 1"),
        ({"axes": []}, r"axes must be an object, got \[\]"),
        ({"axes": {"z": 1}}, "axes has no key 'z'; its keys are x, y"),
        ({"columns": "id"}, r"columns of few must be a list of columns, got 'id'; write \['id'\]"),
        ({"columns": ["a", 3]}, r"columns\[1\] of few must be a string, got 3"),
        ({"shares": {"a": 0}}, r"shares\['a'\] of few must be a number above 0, got 0"),
        ({"limit": "1"}, "limit of few must be a number of seconds above 0 or null, got '1'"),
        ({"parts": [{"color": "read"}]}, "of a part must be 'red', got 'read', did you mean 'red'"),
        ({"parts": [{"colour": "red"}]}, "a part has no field 'colour', did you mean 'color'"),
        ({"parts": [{}]}, "a part needs color; missing: color"),
        ({"parts": [3]}, "a part is described by an object, got 3"),
    ],
)
def test_a_value_outside_the_declaration_is_an_error_that_names_the_option(wrong, message):
    with pytest.raises(SpecError, match=message):
        Few.from_dict(wrong)


def test_values_inside_the_declaration_are_accepted():
    assert Few(size=9, rate=1, most=None, word="alpha", on=True, axes={"x": 2}).size == 9
    assert Few.from_dict({"parts": [{"color": "red"}]}) == Few(parts=(Part(color=Color.RED),))


def test_the_form_and_the_rest_schema_have_the_bounds_of_the_declaration():
    params = training_params()
    assert params["epochs"].schema["minimum"] == 1
    assert params["store_timeout"].schema["exclusiveMinimum"] == 0
    assert params["checkpoint_interval"].schema["type"] == ["null", "number"]
    assert params["launcher"].schema["enum"] == [None, "process", "kubernetes"]
    assert params["mesh"].schema["propertyNames"] == {"enum": ["batch", "model"]}


def test_each_title_of_the_form_has_the_key_for_rest():
    params = training_params()
    assert params["epochs"].schema["title"] == "Epochs (epochs)"
    assert params["mesh"].schema["title"].endswith(" (mesh)")
    sections = {name: params[name].schema["section"] for name in ("launcher", "reuse", "dry_run")}
    assert len(set(sections.values())) == 2
    assert sections["launcher"] == "Launcher"


#: Airflow would store those that are not finite as null.
NOT_FINITE = [float("nan"), float("inf"), float("-inf"), json.loads("1e999")]


@pytest.mark.parametrize(
    ("name", "values"),
    [
        ("learning_rate", NOT_FINITE),
        ("threshold", NOT_FINITE),
        ("checkpoint_interval", NOT_FINITE),
        ("hparams", [{"l2": value} for value in NOT_FINITE]),
        ("progress_timeout", [1e-9]),
        ("shards", [1_000_000]),
        ("strategy", ["none"]),
    ],
)
def test_a_value_that_cannot_work_is_refused_when_a_run_is_triggered(name, values):
    for value in values:
        with pytest.raises(ParamValidationError):
            training_params()[name].resolve(value)


@pytest.mark.parametrize("address", ["<b>tpu</b>", "http://10.0.0.2", "grpc://a b:1", ""])
def test_what_is_no_address_of_a_tpu_is_refused(address):
    with pytest.raises(SpecError, match="tpu must be the name of a TPU, or grpc://host:port, got"):
        training_params(tpu=address)


def test_an_option_of_another_strategy_is_refused():
    meshed = TrainArguments(model="m", data="d", mesh={"batch": 2})
    check_strategy(meshed, "dtensor")
    with pytest.raises(SpecError, match=r"mesh is .*, which only the strategy 'dtensor' uses"):
        check_strategy(meshed, "mirrored")
    # A DAG file may describe a TPU, and a run choose another strategy.
    check_strategy(TrainArguments(model="m", data="d", tpu="grpc://a:1"), "mirrored")


def test_no_field_has_a_star_because_an_empty_one_means_the_default():
    # Airflow's form has a star for each type without null, and then accepts no empty field.
    for name, param in training_params().items():
        if "const" not in param.schema:
            assert "null" in param.schema["type"], name
            assert param.resolve(None) is None, name


def test_each_choice_of_the_form_is_shown_as_what_it_is():
    # Airflow shows all values without a text of their own by that of None, if there is one.
    found = training_params(strategy="mirrored")
    for name, param in found.items():
        if "enum" in param.schema:
            assert [*map(str, param.schema["enum"])][1:] == list(param.schema["values_display"])[1:]
            assert all(value == shown for value, shown in _displayed(param)[1:]), name
    assert _displayed(found["strategy"])[0] == ("null", "(mirrored)")
    assert _displayed(found["launcher"])[0] == ("null", "(the setting of this Airflow)")


def _displayed(param):
    return list(param.schema["values_display"].items())


@pytest.mark.parametrize(
    ("name", "default", "said"),
    [
        ("workers", None, "Empty: 1 under multi_worker_mirrored, 2 under parameter_server"),
        ("epochs", 12, "Empty: 12."),
        ("store_timeout", 3600.0, "Empty: 3600."),
        ("hparams", {"units": 8}, 'Empty: {"units": 8}.'),
    ],
)
def test_the_form_says_what_an_empty_field_means(name, default, said):
    assert said in training_params(**{name: default})[name].schema["description_md"]


def test_a_run_cannot_choose_where_its_data_are_sent():
    assert training_params()["tpu"].schema["const"] == "local"
    here = training_params(tpu="grpc://10.0.0.2:8470")["tpu"]
    assert here.resolve() == "grpc://10.0.0.2:8470"
    with pytest.raises(ParamValidationError, match=r"'grpc://10\.0\.0\.2:8470' was expected"):
        here.resolve("grpc://stranger:8470")


@pytest.mark.parametrize("name", list(OPTIONS))
def test_every_option_has_a_valid_default_and_a_description(name):
    declared = OPTIONS[name]
    declared.check(declared.default)
    assert declared.option.title
    assert declared.option.help.rstrip("*").endswith((".", "variables"))


def test_the_command_line_has_a_flag_for_every_option_of_the_training_step():
    words = ["train", "--model", "m", "--data", "d", "--store", "s"]
    given = parse(
        [*words, "--epochs", "3", "--steps-per-execution", "auto", "--mesh", '{"batch": 2}']
    )
    assert (given.epochs, given.steps_per_execution, given.mesh) == (3, None, {"batch": 2})
    assert all(hasattr(given, name) for name in options_of(TrainArguments))


@pytest.mark.parametrize(("page", "generated"), [("options", options_page), ("steps", steps_page)])
def test_the_reference_pages_are_generated_from_the_declarations(page, generated):
    assert (DOCS / f"{page}.md").read_text() == generated(), "run `make docs`"
