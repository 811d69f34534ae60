"""Values of a run's params, as a DAG file hands them to a step: templates without Jinja.

Airflow calls ``resolve`` on what it finds in an operator's template fields.
"""

from dataclasses import dataclass
from typing import Any

from airflow.sdk import Context


@dataclass(frozen=True)
class RunParam:
    """The value of a param in the run, typed and checked."""

    name: str

    def resolve(self, context: Context) -> Any:
        return context["params"][self.name]

    def __str__(self) -> str:
        return f"{{{{ params.{self.name} }}}}"


@dataclass(frozen=True)
class RunResources(RunParam):
    """What the run asks for one role's replicas: that role's part of the param."""

    role: str = "chief"

    def resolve(self, context: Context) -> Any:
        return super().resolve(context).get(self.role, {})


class RunSwitch(RunParam):
    """One replica where a switch of the run is on, or a count of others above 0; else none."""

    def resolve(self, context: Context) -> int:
        return int(bool(super().resolve(context)))
