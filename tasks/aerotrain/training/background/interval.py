"""Intervals: when a checkpoint, or something else, is due."""

import math
from collections.abc import Callable

#: Seconds between failures that are assumed before any was observed: one in six hours, about the
#: rate of spot instances and shared clusters.
USUAL_MTBF = 6 * 3600.0

#: The least and the most seconds between two checkpoints, and the largest share of the time that
#: saving may take.
_LEAST, _MOST, _SHARE = 10.0, 3600.0, 0.02

#: Seconds between checkpoints before their cost is known.
_UNTIL_KNOWN = 60.0


class Interval:
    """Due once in every ``seconds`` of ``clock``, which must be monotonic."""

    def __init__(self, seconds: float, clock: Callable[[], float]) -> None:
        self.seconds = seconds
        self._clock = clock
        self._last = clock()

    def due(self) -> bool:
        """Whether it is due; if so, the next interval starts now."""
        now = self._clock()
        if now - self._last < self.seconds:
            return False
        self._last = now
        return True

    def cost(self, seconds: float) -> None:
        """Record the ``seconds`` for which the last save stopped training; ignored here."""


class GrowingInterval(Interval):
    """Due after ``first`` seconds, and each time after twice as long, up to ``most`` seconds."""

    def __init__(self, first: float, most: float, clock: Callable[[], float]) -> None:
        super().__init__(first, clock)
        self._most = most

    def due(self) -> bool:
        if not super().due():
            return False
        self.seconds = min(2 * self.seconds, self._most)
        return True


class OptimalInterval(Interval):
    """The interval of least cost: the time of saving plus the expected loss by failures.

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


def checkpoint_interval(
    seconds: float | None, clock: Callable[[], float], mtbf: Callable[[], float]
) -> Interval:
    """The interval of ``seconds`` between two checkpoints, or with None that of least cost.

    ``mtbf`` returns the mean time between failures in seconds.
    """
    return OptimalInterval(clock, mtbf()) if seconds is None else Interval(seconds, clock)


def optimal_interval(cost: float, mtbf: float) -> float:
    """Seconds between checkpoints of ``cost`` seconds: Young's sqrt(2 * cost * mtbf).

    The result is bounded, and so long that saving takes at most 2 % of the time. J. W. Young, A
    first order approximation to the optimum checkpoint interval, 1974,
    https://doi.org/10.1145/361147.361115. Daly's refinement of 2006 differs only if the cost is not
    small compared to the mtbf, https://doi.org/10.1016/j.future.2004.11.016.
    """
    least = max(_LEAST, cost / _SHARE)
    return min(max(least, math.sqrt(2 * cost * mtbf)), max(_MOST, least))


def mean_time_between_failures(seconds: float, failures: int) -> float:
    """The mtbf in seconds of a training that ran for ``seconds`` with so many failures.

    USUAL_MTBF counts as one observed failure, so that the estimate does not rest on a first
    failure, or none, alone.
    """
    return (USUAL_MTBF + seconds) / (1 + failures)
