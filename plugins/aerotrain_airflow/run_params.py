"""Values of a run's params that a DAG file passes to a step: templates without Jinja.

Airflow calls ``resolve`` on each such object in an operator's template fields.
"""

from dataclasses import dataclass
from typing import Any

from airflow.sdk import Context


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
