"""Confidence intervals of metrics, by a bootstrap over groups of records.

Every record belongs to one of ``GROUPS`` groups, which ``records.py`` chooses. The state of a
metric is the sum of its states over groups, so a sample of groups, drawn with replacement, is a sum
of their states. This is the bootstrap of grouped data (B. Efron, R. Tibshirani, An Introduction
to the Bootstrap, 1993, sections 6 and 12): records that depend on each other, such as those of one
user, stay together if they are grouped by the user. The standard error is that of the samples, and
the interval is Student's, with one degree of freedom less than groups. Unlike quantiles of the
samples, its probabilities can be as small as Holm's correction over many slices needs.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache

import numpy as np
from numpy.typing import NDArray
from scipy import special

#: How many groups the records are divided into, and how many samples of them are drawn.
GROUPS, SAMPLES = 200, 400

#: The fewest groups with records of which a spread can be estimated.
FEWEST_GROUPS = 10

#: The probability with which a loss is seen that is called detectable.
_POWER = 0.8

Floats = NDArray[np.float64]


@dataclass(frozen=True)
class Estimate:
    """A number with its standard error and degrees of freedom; NaN and 0 where unknown.

    ``range`` are the least and the greatest possible value.
    """

    value: float
    error: float
    freedom: int
    range: tuple[float, float] = (-math.inf, math.inf)

    def interval(self, level: float) -> tuple[float, float]:
        """The two-sided confidence interval of probability 1 - ``level``; NaN if unknown."""
        if self.freedom < 1 or not np.isfinite(self.error):
            return float("nan"), float("nan")
        half = float(special.stdtrit(self.freedom, 1 - level / 2)) * self.error
        least, most = self.range
        return max(least, self.value - half), min(most, self.value + half)

    def probability_below(self, bound: float) -> float:
        """The probability of such a small value, or a smaller one, if the true one is ``bound``."""
        if self.error == 0:
            return 1.0 if self.value >= bound else 0.0
        return float(special.stdtr(self.freedom, (self.value - bound) / self.error))

    def detectable(self, level: float) -> float:
        """The distance from a bound of which a test at ``level`` sees 80 % (its power).

        NIST/SEMATECH e-Handbook of Statistical Methods, section 7.2.2.2, for Student's t.
        """
        quantiles = special.stdtrit(self.freedom, [1 - level, _POWER])
        return float(quantiles.sum() * self.error)

    @property
    def is_known(self) -> bool:
        """Whether the number has an error that can be trusted."""
        return (
            self.freedom >= FEWEST_GROUPS - 1
            and bool(np.isfinite(self.value))
            and bool(np.isfinite(self.error))
        )


@cache
def samples(seed: int = 0) -> Floats:
    """How often each group is in each sample: ``(SAMPLES, GROUPS)``."""
    draws = np.random.default_rng(seed).multinomial(GROUPS, np.full(GROUPS, 1 / GROUPS), SAMPLES)
    return draws.astype(np.float64)


def estimate(value: float, sampled: Floats, occupied: int) -> Estimate:
    """An estimate from the values of the samples; ``occupied`` groups have records."""
    finite = sampled[np.isfinite(sampled)]
    if len(finite) < 0.9 * len(sampled):  # the metric needs, say, both classes in each sample
        return Estimate(value, float("nan"), 0)
    correction = np.sqrt(occupied / max(occupied - 1, 1))
    return Estimate(value, float(finite.std(ddof=1) * correction), occupied - 1)


def holm(probabilities: Sequence[float]) -> list[float]:
    """The probabilities of several tests, adjusted so that one wrong refusal is as rare as in one.

    S. Holm, A simple sequentially rejective multiple test procedure, 1979.
    """
    adjusted = [0.0] * len(probabilities)
    highest = 0.0
    order = sorted(range(len(probabilities)), key=lambda each: probabilities[each])
    for rank, place in enumerate(order):
        highest = max(highest, min(1.0, (len(order) - rank) * probabilities[place]))
        adjusted[place] = highest
    return adjusted
