"""The strategies by name, and which replicas each one needs.

This is the half of the table that both sides read. The other half, how TensorFlow builds
each strategy, is ``aerotrain.training.strategies``; a test holds the two together.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from difflib import get_close_matches

from aerotrain.contract.errors import SpecError


@dataclass(frozen=True, kw_only=True)
class StrategyRules:
    """Which replicas a strategy runs on, beside its one chief.

    ``workers`` and ``ps`` are how many of that role run where nobody says: 0 where the
    strategy has no such role. ``min_workers`` is how many it cannot do without. Where
    workers are ``peers``, they run the chief's own loop, else they serve the chief.
    ``more_workers`` says that there may be some where the strategy's own number is 0, and
    ``input`` that other replicas may read for all of these.
    """

    summary: str
    workers: int = 0
    min_workers: int = 0
    ps: int = 0
    peers: bool = False
    more_workers: bool = False
    input: bool = True

    @property
    def has_workers(self) -> bool:
        """Whether the strategy has such a role."""
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
    ),
    "parameter_server": StrategyRules(
        summary="asynchronous: the workers compute, the ps hold the variables",
        workers=2,
        min_workers=1,
        ps=1,
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
        SpecError: no strategy has that name; the message holds the nearest that exists.
    """
    try:
        return STRATEGIES[strategy]
    except KeyError:
        raise SpecError(
            f"there is no strategy {strategy!r}{nearest(strategy, STRATEGIES)}; "
            f"the strategies are {', '.join(sorted(STRATEGIES))}"
        ) from None


def nearest(name: str, known: Mapping[str, object] | list[str]) -> str:
    """``", did you mean 'x'?"`` for the known name nearest to ``name``, or nothing."""
    close = get_close_matches(name, list(known), n=1)
    return f", did you mean {str(close[0])!r}?" if close else ""
