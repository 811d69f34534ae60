"""The deadlines of a job, and how often its replicas may be restarted."""

from dataclasses import dataclass, fields

from aerotrain.contract.errors import SpecError
from aerotrain.contract.options import Section, check_options, option
from aerotrain.contract.validation import check_types


@dataclass(frozen=True, kw_only=True)
class Deadlines:
    """Deadlines of a job in seconds: until every replica runs, and for the whole job."""

    start: float = 600.0
    run: float = 24 * 3600.0
    progress_timeout: float = option(
        60.0,
        title="Progress timeout (seconds)",
        help="Time without a heartbeat or a training step after which a replica counts as "
        "unresponsive and is restarted.",
        section=Section.RECOVERY,
        above=0,
    )

    def __post_init__(self) -> None:
        check_types(self, **dict.fromkeys(("start", "run"), (int, float)))
        if min(self.start, self.run) <= 0:
            raise SpecError(
                f"deadlines are seconds above zero, got start={self.start} and run={self.run}"
            )
        check_options(self)


@dataclass(frozen=True, kw_only=True)
class Restarts:
    """How often each replica may be restarted in its replica group, by failure kind.

    Each kind has its own budget, so that frequent preemptions do not use up the budget for bugs.
    With a budget of 0, Airflow's retries handle failures of that kind.
    """

    crashes: int = 3
    preemptions: int = 100
    memory: int = 2
    hangs: int = 3
    starts: int = 3

    def __post_init__(self) -> None:
        budgets = {each.name: getattr(self, each.name) for each in fields(self)}
        check_types(self, **dict.fromkeys(budgets, int))
        below = [f"{name}={budget}" for name, budget in budgets.items() if budget < 0]
        if below:
            raise SpecError(
                f"restart budgets are not below zero, got {', '.join(below)}; 0 leaves a loss of "
                "that kind to Airflow's retries"
            )
