"""The replicas of a training that are much slower than the others, by the times of their steps.

Each reports its own, and the chief those of workers that it coordinates. The process that
follows the group names the slow ones, and the page of a run shows them, by this one rule.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from statistics import median_low

from aerotrain.contract.status import GONE_AFTER, ReplicaStatus

#: A replica is a straggler from this robust z-score on, as in B. Iglewicz and D. Hoaglin, How to
#: Detect and Handle Outliers, 1993. The deviation counts as at least this share of the median: that
#: of a few may be 0, and steps that take less than 1.5 times as long are noise on a busy machine.
_SCORE, _LEAST_DEVIATION = 3.5, 1 / 7

#: The standard deviation of a normal distribution over its median absolute deviation.
_SCALE = 1.4826


@dataclass(frozen=True, kw_only=True)
class Straggler:
    """A replica whose own part of a step takes ``seconds``: ``times`` the median of all."""

    replica: str
    seconds: float
    times: float

    def __str__(self) -> str:
        own = f"{self.seconds * 1000:.3g} ms, {self.times:.2g} times the median of all"
        return f"{self.replica} is slow: its own part of a step takes {own}"


def own_times(statuses: Mapping[str, ReplicaStatus]) -> dict[str, float]:
    """The seconds of each replica's own part of a step, as they were reported last.

    Peers wait for each other, so their communication does not count. Workers of a coordinator, who
    reports their times, also of those that are gone, wait for none.
    """
    last = {name: each.processes[-1] for name, each in statuses.items()}
    return {
        replica: time.seconds - (time.communication or 0.0 if replica == reporter else 0.0)
        for reporter, process in sorted(last.items(), key=lambda each: each[1].seen)
        for replica, time in process.step_times.items()
        if replica in last and process.seen - last[replica].seen < GONE_AFTER
    }


def stragglers(own: Mapping[str, float]) -> list[Straggler]:
    """Those among replicas with these times, the slowest first."""
    if len(own) < 2:
        return []
    middle = max(median_low(own.values()), 1e-9)
    deviation = _SCALE * median_low(abs(each - middle) for each in own.values())
    least = middle + _SCORE * max(deviation, _LEAST_DEVIATION * middle)
    found = [
        Straggler(replica=name, seconds=each, times=each / middle)
        for name, each in own.items()
        if each > least
    ]
    return sorted(found, key=lambda each: -each.seconds)
