"""The strategies by name, and which replicas each one needs.

Both sides read this half of the table. The other half, how TensorFlow builds each strategy, is
``aerotrain.training.strategies``; a test keeps the two consistent.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

from aerotrain.contract.errors import SpecError, nearest
from aerotrain.contract.options import Section, option
from aerotrain.contract.replicas import SIZE, Role
from aerotrain.contract.validation import Validated


@dataclass(frozen=True, kw_only=True)
class StrategyRules:
    """The replicas that a strategy runs on, in addition to its one chief.

    ``workers`` and ``ps`` are the default counts of these roles; 0 if the strategy has no such
    role. ``min_workers`` is the least number of workers. ``peers`` means that the workers run the
    chief's own loop; otherwise they serve the chief. ``more_workers`` allows workers although the
    default is 0. ``input`` allows input replicas that read for all others. ``elastic`` means that
    the number of workers may change while a training runs.
    """

    summary: str
    workers: int = 0
    min_workers: int = 0
    ps: int = 0
    peers: bool = False
    more_workers: bool = False
    input: bool = True
    elastic: bool = False

    @property
    def has_workers(self) -> bool:
        """Whether the strategy allows workers."""
        return self.workers > 0 or self.more_workers


STRATEGIES: Mapping[str, StrategyRules] = {
    "one_device": StrategyRules(
        summary="one process on one device",
    ),
    "mirrored": StrategyRules(
        summary="one process on all its devices, each with a copy of the variables",
    ),
    "central_storage": StrategyRules(
        summary="one process on all its devices, with the variables on one of them",
    ),
    "multi_worker_mirrored": StrategyRules(
        summary="synchronous: chief and workers compute, and add up their gradients each step",
        workers=1,
        min_workers=1,
        peers=True,
        elastic=True,
    ),
    "parameter_server": StrategyRules(
        summary="asynchronous: the workers compute, the ps hold the variables",
        workers=2,
        min_workers=1,
        ps=1,
        elastic=True,
    ),
    "dtensor": StrategyRules(
        summary="synchronous: batches and variables are cut over a mesh of devices, of one "
        "process or several",
        peers=True,
        more_workers=True,
        input=False,
    ),
    "tpu": StrategyRules(
        summary="one process on the cores of a TPU, each with a copy of the variables",
    ),
}


def rules_of(strategy: str) -> StrategyRules:
    """The rules of the strategy of that name.

    Raises:
        SpecError: no strategy has that name; the message contains the nearest one.
    """
    try:
        return STRATEGIES[strategy]
    except KeyError:
        raise SpecError(
            f"there is no strategy {strategy!r}{nearest(strategy, STRATEGIES)}; "
            f"the strategies are {', '.join(sorted(STRATEGIES))}"
        ) from None


#: The option that has the number of replicas of a role, and that of which one runs if it is set.
COUNTED_BY: Mapping[Role, str] = {
    Role.WORKER: "workers",
    Role.PS: "ps",
    Role.INPUT: "data_workers",
}
SWITCHED_BY: Mapping[Role, str] = {Role.EVALUATOR: "evaluator"}


def _defaults(count: str) -> str:
    """What an empty field means: the default count of each strategy that has one."""
    counts = {name: getattr(rules, count) for name, rules in STRATEGIES.items()}
    return ", ".join(f"{each} under {name}" for name, each in counts.items() if each) + ", else 0"


@dataclass(frozen=True, kw_only=True)
class TrainingOptions(Validated):
    """The options of a training that are no arguments of its step: its strategy and replicas."""

    TITLE: ClassVar = "the options of a training"

    strategy: str = option(
        "one_device",
        title="Strategy",
        help="\n".join(f"- **{name}**: {rules.summary}" for name, rules in STRATEGIES.items()),
        section=Section.TRAINING,
        choices=tuple(STRATEGIES),
    )
    workers: int | str | None = option(
        None,
        title="Workers",
        help="Replicas that compute, the chief not counted. A range such as `2..8` lets a training "
        "begin with those that have a place, go on where some are lost, and take others later.",
        empty=_defaults("workers"),
        section=Section.REPLICAS,
        **vars(SIZE),
    )
    ps: int | None = option(
        None,
        title="ps",
        help="Replicas that hold variables.",
        empty=_defaults("ps"),
        strategy="parameter_server",
        section=Section.REPLICAS,
        minimum=0,
    )
    evaluator: bool = option(
        False,
        title="Evaluator",
        help="An additional replica that measures each checkpoint on the validation split while "
        "training goes on.",
        section=Section.REPLICAS,
    )
    data_workers: int | None = option(
        None,
        title="Data workers",
        help="Replicas that read, parse and transform records for the others, where input "
        "is the bottleneck. Not available under dtensor.",
        empty="none",
        section=Section.REPLICAS,
        minimum=0,
    )
