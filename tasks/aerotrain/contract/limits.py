"""How long a job may take, and how often its replicas may come back."""

from dataclasses import dataclass, fields

from aerotrain.contract.errors import SpecError
from aerotrain.contract.given import check_types


@dataclass(frozen=True, kw_only=True)
class Deadlines:
    """Seconds a job may take: to have every replica running, and altogether.

    ``patience`` is how many seconds a replica may give no sign of life, or make no progress,
    before it counts as frozen.
    """

    start: float = 600.0
    run: float = 24 * 3600.0
    patience: float = 60.0

    def __post_init__(self) -> None:
        check_types(self, **dict.fromkeys(("start", "run", "patience"), (int, float)))
        if min(self.start, self.run, self.patience) <= 0:
            raise SpecError(
                f"deadlines are seconds above zero, got start={self.start}, run={self.run}, "
                f"patience={self.patience}"
            )


@dataclass(frozen=True, kw_only=True)
class Restarts:
    """How often each replica may come back in its set, by the kind of its loss.

    The kinds have budgets of their own, so that a cluster that preempts often does not use up
    what is meant for bugs. A budget of 0 leaves that kind to Airflow's retries.
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
