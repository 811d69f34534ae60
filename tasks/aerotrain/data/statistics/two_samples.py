"""Two-sample tests: how far two samples of a column are apart, and whether chance explains it.

Two data sets differ only if both hold: their distance is above a limit, so that a small difference
between very many records does not count; and it is improbable if nothing changed, so that the noise
of few records does not count either.
"""

import math
from collections.abc import Iterator, Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

#: The probability of each test to find a difference where there is none. There are three tests of a
#: column, of its missing values, its values and its new categories: together less than 1 %.
SIGNIFICANCE = 0.003

#: Categories with a smaller share in both samples are counted as one.
LEAST_SHARE = 0.01

#: Random divisions of the records with which a distance is compared, and how many at once.
_DIVISIONS, _AT_ONCE = 1000, 100

Counts = Mapping[str, int]
Shares = NDArray[np.float64]


def category_drift(counts: Sequence[Counts], totals: Sequence[int], limit: float) -> float | None:
    """The distance of two samples of categories, if it is above ``limit`` and no chance; else None.

    ``counts`` are those of each category; what is missing up to ``totals`` counts as further rare
    ones. The distance, from 0 to 1, is that of Jensen and Shannon (the root of their divergence
    with the logarithm of base 2, https://doi.org/10.1109/18.61115). It is sensitive to rare
    categories: one that grows from 1 to 20 % is 0.29 away. Chance is measured by a permutation test
    (https://en.wikipedia.org/wiki/Permutation_test): all records are divided at random, 1,000
    times; the mean divergence of these is subtracted, because few records of many categories are
    always some distance apart.
    """
    words = sorted(counts[0].keys() | counts[1].keys())
    each = np.array([[count.get(word, 0) for word in words] for count in counts], np.int64)
    sizes = np.array(totals, np.int64)
    divergence = float(_divergence(each[0] / sizes[0], each[1] / sizes[1]))
    if math.sqrt(divergence) <= limit:
        return None
    by_chance = np.zeros(0)
    for some in _divergences_by_chance(each.sum(axis=0), sizes):
        by_chance = np.append(by_chance, some)
        if 1 + (by_chance >= divergence).sum() > SIGNIFICANCE * (1 + _DIVISIONS):
            return None
    distance = math.sqrt(max(0.0, divergence - float(by_chance.mean())))
    return distance if distance > limit else None


def _divergences_by_chance(pooled: NDArray[np.int64], sizes: NDArray[np.int64]) -> Iterator[Shares]:
    """The divergences if the ``pooled`` records of both samples are divided at random."""
    # Others are below the least share in any division.
    pooled = pooled[pooled >= LEAST_SHARE * sizes.min()]
    pooled = np.append(pooled, sizes.sum() - pooled.sum())
    random = np.random.default_rng(0)
    for _ in range(_DIVISIONS // _AT_ONCE):
        now = random.binomial(pooled, sizes[1] / sizes.sum(), (_AT_ONCE, len(pooled)))
        before = pooled - now
        shares = (part / np.maximum(1, part.sum(axis=1, keepdims=True)) for part in (before, now))
        yield _divergence(*(share[:, :-1] for share in shares))


def _divergence(before: Shares, now: Shares) -> Shares:
    """The Jensen-Shannon divergence, in bits, of shares along the last axis."""
    is_shown = np.maximum(before, now) >= LEAST_SHARE
    before, now = np.where(is_shown, before, 0), np.where(is_shown, now, 0)
    others = [1 - share.sum(axis=-1, keepdims=True) for share in (before, now)]
    one = np.concatenate([before, others[0]], axis=-1).clip(0)
    other = np.concatenate([now, others[1]], axis=-1).clip(0)
    middle = (one + other) / 2
    bits = sum(
        share * np.log2(np.divide(share, middle, out=np.ones_like(share), where=share > 0))
        for share in (one, other)
    )
    return np.maximum(0, np.asarray(bits).sum(axis=-1) / 2)


def new_categories(counts: Sequence[Counts], totals: Sequence[int], least: float) -> list[str]:
    """The categories that only the second sample has, with at least that share and by no chance.

    If all records were divided at random, a category of ``c`` records would lie in the second part
    alone with the probability ``share ** c``. So rare categories, of which each sample has others,
    are expected; the sum over all categories that are as frequent bounds the probability.
    """
    before, now = counts
    share = totals[1] / sum(totals)
    pooled = np.sort([before.get(word, 0) + now.get(word, 0) for word in before.keys() | now])
    expected = np.cumsum((share ** pooled.astype(np.float64))[::-1])[::-1]
    return [
        word
        for word, count in now.items()
        if word not in before
        and count >= least * totals[1]
        and expected[np.searchsorted(pooled, count)] <= SIGNIFICANCE
    ]


def number_drift(
    quantiles: Sequence[Mapping[str, float]], sizes: Sequence[int], limit: float
) -> float | None:
    """The distance of two samples of numbers, if it is above ``limit`` and no chance; else None.

    The distance is the greatest of their distribution functions (Kolmogorov and Smirnov), as far
    as ``quantiles`` prove it: each function is known to their spacing. ``sizes`` are the numbers of
    values. Chance is what Smirnov's limit allows:
    https://en.wikipedia.org/wiki/Kolmogorov%E2%80%93Smirnov_test#Two-sample_Kolmogorov%E2%80%93Smirnov_test.
    """
    one, other = sizes
    by_chance = math.sqrt(math.log(2 / SIGNIFICANCE) / 2 * (one + other) / (one * other))
    values = np.unique([value for each in quantiles for value in each.values()])
    (least, most), (other_least, other_most) = (_bounds(each, values) for each in quantiles)
    distance = float(np.maximum(least - other_most, other_least - most).max())
    distance -= 1 / one + 1 / other  # quantiles lie between the values of the sample
    return distance if distance > max(limit, by_chance) else None


def _bounds(quantiles: Mapping[str, float], values: Shares) -> tuple[Shares, Shares]:
    """The least and the greatest share of the records that may be up to each of ``values``."""
    shares = np.array([0.0, *map(float, quantiles), 1.0])
    up_to = np.searchsorted(list(quantiles.values()), values, side="right")
    # The first quantile is the minimum: no record is below it.
    return shares[up_to], np.where(up_to, shares[up_to + 1], 0.0)
