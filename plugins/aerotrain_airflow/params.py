"""The params of a training pipeline, for the trigger form and the REST API.

They are derived from the options that the contract declares. A pipeline uses all of them, and may
override defaults::

    @dag(params=training_params(epochs=12, threshold=0.95))

A DAG file passes their values to a step as ``RunParam("epochs")``, a template without Jinja:
Airflow calls ``resolve`` on each such object in an operator's template fields.
"""

from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any

from airflow.sdk import Context, Param

from aerotrain.contract.errors import SpecError, nearest
from aerotrain.contract.job import Deadlines, Job, Restarts, Role
from aerotrain.contract.options import Kind, Section, option, options_of
from aerotrain.contract.preparing import PlanArguments
from aerotrain.contract.strategy import TrainingOptions
from aerotrain.contract.training import TrainArguments
from aerotrain_airflow.settings import LAUNCHERS


@dataclass(frozen=True, kw_only=True)
class RunOptions:
    """The options of a run that no part of the contract declares under the same name."""

    threshold: float = option(
        0.9,
        title="Threshold",
        help="Least accuracy on the test split of a model that is exported.",
        section=Section.GATE,
        minimum=0,
        maximum=1,
    )
    check_model: bool = option(
        True,
        title="Check the model",
        help="Build the model in the first task, on the first records of the source, and end the "
        "run there if the model cannot be trained. It takes some seconds.",
        section=Section.GATE,
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
        section=Section.LAUNCHER,
        keys=tuple(Role),
    )
    launcher: str | None = option(
        None,
        title="Launcher",
        help="Run replicas as local processes or as pods, if the administrator allows it. Empty: "
        "the setting of this Airflow.",
        section=Section.LAUNCHER,
        kind=Kind.STRING,
        choices=tuple(LAUNCHERS),
    )
    dry_run: bool = option(
        False,
        title="Dry run",
        help="Write what would be started into the log of the first task, and start nothing.",
        section=Section.LAUNCHER,
    )


#: Every option of a pipeline by name, and those of them that are in the trigger form.
OPTIONS = options_of(TrainingOptions, RunOptions, TrainArguments, PlanArguments, Deadlines, Job)
FORM = {name: each for name, each in OPTIONS.items() if each.option.in_form}

#: The options that are also arguments of the training step, under the same names.
TRAINING_STEP = tuple(name for name in options_of(TrainArguments) if name in FORM)

#: The other options of the training step, which a DAG file sets.
SET_BY_DAG = tuple(name for name in options_of(TrainArguments) if name not in FORM)


def training_params(**defaults: Any) -> dict[str, Param]:
    """Every param of a training pipeline, with the pipeline's own defaults.

    Raises:
        SpecError: a default is given for a param that does not exist.
    """
    params = {
        name: Param(
            each.default,
            title=each.option.title,
            description_md=each.option.help,
            section=each.option.section.value,
            **each.option.json_schema(),
        )
        for name, each in FORM.items()
    }
    for name, value in defaults.items():
        if name not in params:
            raise SpecError(
                f"a training pipeline has no param {name!r}{nearest(name, params)}; "
                f"it has {', '.join(params)}"
            )
        params[name].value = value
    for name, each in FORM.items():
        if each.option.fixed:
            params[name].schema["enum"] = [params[name].value]
    return params


@dataclass(frozen=True)
class RunParam:
    """The value of one param of the run, with its type, after Airflow's check."""

    name: str

    def resolve(self, context: Context) -> Any:
        return context["params"][self.name]

    def __str__(self) -> str:
        return f"{{{{ params.{self.name} }}}}"


@dataclass(frozen=True)
class RunResources(RunParam):
    """The entry of one role in a param that maps roles to resources."""

    role: str = "chief"

    def resolve(self, context: Context) -> Any:
        return super().resolve(context).get(self.role, {})


class RunSwitch(RunParam):
    """1 if a param of the run is true, or a count above 0; else 0."""

    def resolve(self, context: Context) -> int:
        return int(bool(super().resolve(context)))
