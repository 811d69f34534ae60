"""When something is due: kept apart from what is then done."""

import math
from collections.abc import Callable

#: Seconds between failures that are assumed where none was seen: one in six hours, about what
#: spot instances and shared clusters give.
USUAL_MTBF = 6 * 3600.0

#: The least and the most seconds between two checkpoints, and the largest share of the time
#: that they may take.
_LEAST, _MOST, _SHARE = 10.0, 3600.0, 0.02

#: The seconds between checkpoints before their cost is known.
_UNTIL_KNOWN = 60.0


class Interval:
    """Due once in every ``seconds`` of ``clock``, which must never go back."""

    def __init__(self, seconds: float, clock: Callable[[], float]) -> None:
        self.seconds = seconds
        self._clock = clock
        self._last = clock()

    def due(self) -> bool:
        """Whether it is time; if so, the next time is counted from now."""
        now = self._clock()
        if now - self._last < self.seconds:
            return False
        self._last = now
        return True

    def cost(self, seconds: float) -> None:
        """What was due has kept the training waiting for so long."""


class OptimalInterval(Interval):
    """Due as often as costs least: what saving takes, and what a failure loses, together.

    ``mtbf`` is the mean time between failures in seconds.
    """

    def __init__(self, clock: Callable[[], float], mtbf: float = USUAL_MTBF) -> None:
        super().__init__(_UNTIL_KNOWN, clock)
        self._mtbf = mtbf
        self._costs: list[float] = []

    def cost(self, seconds: float) -> None:
        self._costs = [*self._costs[-4:], seconds]
        mean = sum(self._costs) / len(self._costs)
        self.seconds = optimal_interval(mean, self._mtbf)


def optimal_interval(cost: float, mtbf: float) -> float:
    """Seconds between checkpoints of ``cost`` seconds: Young's sqrt(2 * cost * mtbf).

    It is kept within sensible bounds, and so long that saving takes 2 % of the time at most.
    J. W. Young, A first order approximation to the optimum checkpoint interval, 1974,
    https://doi.org/10.1145/361147.361115; Daly's refinement of 2006 differs where the cost is
    not small beside the mtbf, https://doi.org/10.1016/j.future.2004.11.016.
    """
    least = max(_LEAST, cost / _SHARE)
    return min(max(least, math.sqrt(2 * cost * mtbf)), max(_MOST, least))


def mean_time_between_failures(seconds: float, failures: int) -> float:
    """The mtbf of a training that took ``seconds`` with so many failures.

    What is usual counts as one failure that was seen, so that a first one, or none, is not
    taken for the rule.
    """
    return (USUAL_MTBF + seconds) / (1 + failures)
