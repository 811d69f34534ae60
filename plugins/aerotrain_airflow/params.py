"""The params of a training pipeline, for the trigger form and the REST API.

They are derived from the options that the contract declares. A pipeline uses all of them, and may
override defaults::

    @dag(params=training_params(epochs=12, threshold=0.95))

A DAG file passes their values to a step as ``RunParam("epochs")``, a template without Jinja:
Airflow calls ``resolve`` on each such object in an operator's template fields.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from typing import Any

from airflow.sdk import Context, Param
from airflow.sdk.definitions.param import ParamsDict

from aerotrain.contract.errors import SpecError, nearest
from aerotrain.contract.job import Deadlines, Restarts
from aerotrain.contract.options import Declared, Section, option, options_of
from aerotrain.contract.preparing import PlanArguments
from aerotrain.contract.replicas import Role
from aerotrain.contract.retention import RetentionPolicy
from aerotrain.contract.strategy import TrainingOptions
from aerotrain.contract.training import TrainArguments
from aerotrain_airflow.settings import LAUNCHERS


@dataclass(frozen=True, kw_only=True)
class RunOptions:
    """The options of a run that no part of the contract declares under the same name."""

    threshold: float = option(
        0.9,
        title="Threshold",
        help="Least accuracy on the test split of a model that is exported, or the bound of the "
        "metric for which the DAG uses it.",
        section=Section.TRAINING,
    )
    check_model: bool = option(
        True,
        title="Check the model",
        help="Build the model in the first task, on the first records of the source, and end the "
        "run there if the model cannot be trained. It takes some seconds.",
        section=Section.CHECKS,
    )
    restarts: Mapping[str, int] = option(
        {},
        title="Restart limits",
        help="How often each replica is restarted in place, by the kind of its failure, as "
        '{"crashes": 1, "hangs": 0}. Kinds that are not named: '
        + ", ".join(f"{each.default} {each.name}" for each in fields(Restarts))
        + ".",
        section=Section.RECOVERY,
        keys=tuple(each.name for each in fields(Restarts)),
    )
    resources: Mapping[str, Any] = option(
        {},
        title="Resources",
        help='Resources of the pods of each role, as {"worker": {"cpu": 4, "memory": "8Gi", '
        '"gpu": 1}}. A role that is not named gets 0.25 cores and 1536Mi.',
        section=Section.REPLICAS,
        keys=tuple(Role),
    )
    launcher: str | None = option(
        None,
        title="Launcher",
        help="Run replicas as local processes or as pods, if the administrator allows it.",
        empty="the setting of this Airflow",
        section=Section.LAUNCHER,
        choices=LAUNCHERS,
    )
    reuse: bool = option(
        True,
        title="Reuse results",
        help="Take over the trained model, the evaluation and the export of an earlier run, if "
        "data, code, parameters and packages are the same. Turn it off to run them again.",
        section=Section.CHECKS,
    )
    dry_run: bool = option(
        False,
        title="Dry run",
        help="Write what would be started into the log of the first task, and start nothing.",
        section=Section.CHECKS,
    )


#: The sections that Airflow's form shows open, and their name there. All others are closed, and
#: only one is open at a time.
_FIRST, _OPEN = (Section.TRAINING, Section.RETENTION), "Run Parameters"

#: The keyword of a param's schema for its default, which stays when a run's conf replaces the
#: value. Airflow cannot read a schema with JSON Schema's own keyword, ``default``.
_DEFAULT = "default_of_dag"

#: Every option of a pipeline by name, and those of them that are in the trigger form.
OPTIONS = options_of(TrainArguments, TrainingOptions, RunOptions, PlanArguments, Deadlines)
FORM = {name: each for name, each in OPTIONS.items() if each.option.in_form}

#: The options that are also arguments of the training step, some of them only there.
TRAINING_STEP = tuple(options_of(TrainArguments))

#: All options of the training step: of its arguments, its replicas and its recovery.
TRAINING = (*TRAINING_STEP, *options_of(TrainingOptions, Deadlines), "restarts", "resources")

#: Every option that a DAG may have as a param.
_DECLARED = {**FORM, **options_of(RetentionPolicy)}


def training_params(**defaults: Any) -> dict[str, Param]:
    """Every param of a training pipeline, with the pipeline's own defaults.

    Raises:
        SpecError: a default is given for a param that does not exist, or is not accepted.
    """
    return _params("a training pipeline", FORM, defaults)


def retention_params(**defaults: Any) -> dict[str, Param]:
    """The params of a DAG that removes what is old; raises as ``training_params`` does."""
    return _params("a DAG of retention", options_of(RetentionPolicy), defaults)


def prediction_params(**defaults: Any) -> dict[str, Param]:
    """The params of a DAG that only predicts; raises as ``training_params`` does."""
    declared = {name: FORM[name] for name in ("resources", "launcher", "dry_run")}
    return _params("a DAG of predictions", declared, defaults)


def without_copies(params: ParamsDict) -> ParamsDict:
    """The params of an operator without its copies of those that its DAG has from this module.

    Airflow copies the params of a DAG to each operator, and validates each copy twice whenever it
    serializes the operator: four fifths of the time of that. The context of a run has the DAG's.
    """
    every = {name: params.get_param(name) for name in params}
    own = {n: p for n, p in every.items() if p.source != "dag" or _DEFAULT not in p.schema}
    return ParamsDict(own)


def _params(
    title: str, declared: Mapping[str, Declared], defaults: Mapping[str, Any]
) -> dict[str, Param]:
    for name in defaults:
        if name not in declared:
            raise SpecError(
                f"{title} has no param {name!r}{nearest(name, declared)}; it has "
                f"{', '.join(declared)}"
            )
    return {name: _param(each, defaults.get(name, each.default)) for name, each in declared.items()}


def _param(declared: Declared, default: Any) -> Param:
    """The param of that option, with the default of the pipeline."""
    described = declared.option
    if default is None and declared.type.kind is Mapping:
        default = {}
    # Airflow's form shows a default that its schema rejects as an empty field.
    declared.check(default)
    schema = declared.json_schema()
    if described.fixed:
        schema["const"] = default  # Airflow's form does not show it
    if described.choices:
        # Of a value that has no text here, the form would show that of null.
        empty = described.empty or default
        shown = {each: each for each in described.choices}
        schema["values_display"] = {"null": f"({empty})", **shown}
    elif not described.empty:
        described = replace(described, empty=_empty(default))
    return Param(
        default,
        schema={
            "title": f"{described.full_title} ({declared.name})",
            "description_md": described.full_help,
            "section": _OPEN if described.section in _FIRST else described.section.value,
            _DEFAULT: default,
            **schema,
        },
    )


def _empty(default: Any) -> str:
    """What an empty field means, which is the default; no text for a switch or an empty default."""
    if isinstance(default, bool) or default in ("", {}, None):
        return ""
    return json.dumps(default).removesuffix(".0")


@dataclass(frozen=True)
class RunParam:
    """The value of one param of the run, with its type, after Airflow's check.

    Where null is no value of its own, it is the same as leaving the param out.
    """

    name: str

    def resolve(self, context: Context) -> Any:
        value, declared = context["params"][self.name], _DECLARED.get(self.name)
        if value is None and declared is not None and not declared.type.optional:
            return context["dag"].params.get_param(self.name).schema[_DEFAULT]
        return value

    def __str__(self) -> str:
        return f"{{{{ params.{self.name} }}}}"


@dataclass(frozen=True)
class RunResources(RunParam):
    """The entry of one role in a param that maps roles to resources."""

    role: str

    def resolve(self, context: Context) -> Any:
        return super().resolve(context).get(self.role, {})


class RunSwitch(RunParam):
    """1 if a param of the run is true, or a count above 0; else 0."""

    def resolve(self, context: Context) -> int:
        return int(bool(super().resolve(context)))


#: The arguments by which every step reads how it is run.
WHERE: dict[str, Any] = {"launcher": RunParam("launcher"), "dry_run": RunParam("dry_run")}

#: What the steps of a model read besides, so that their results may be those of an earlier run.
REUSE: dict[str, Any] = {"reuse": RunParam("reuse")}
