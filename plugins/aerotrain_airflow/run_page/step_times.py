"""The time of a step on each replica, and the slowest of them."""

from collections.abc import Mapping
from dataclasses import dataclass
from statistics import median

from aerotrain.contract.replica_status import ReplicaStatus, StepTime

#: From which multiple of the median a replica is called slow: less is noise on a busy machine.
_SLOW = 1.5


@dataclass(frozen=True)
class Slowest:
    """The replica whose steps take longest, without their communication.

    They take ``seconds`` each, which is ``times`` the median of the other replicas.
    """

    replica: str
    seconds: float
    times: float


def step_times(statuses: Mapping[str, ReplicaStatus]) -> dict[str, StepTime]:
    """The last known time of a step by replica. A coordinator reports those of its workers."""
    reports = sorted(
        (each.processes[-1] for each in statuses.values()), key=lambda process: process.seen
    )
    return {name: time for each in reports for name, time in each.step_times.items()}


def slowest(times: Mapping[str, StepTime]) -> Slowest | None:
    """The slowest of several replicas; None if they are about equally fast.

    Replicas that wait for each other take equally long for a step, so the time that counts is
    without their communication.
    """
    own = {name: each.seconds - (each.communication or 0.0) for name, each in times.items()}
    if len(own) < 2:
        return None
    name = max(own, key=lambda each: own[each])
    middle = median(seconds for other, seconds in own.items() if other != name)
    if own[name] < _SLOW * middle:
        return None
    return Slowest(name, own[name], own[name] / middle if middle else 0.0)
