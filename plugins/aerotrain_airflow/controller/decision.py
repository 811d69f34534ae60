"""The decision of the controller: a value that a backend carries out."""

from collections.abc import Mapping
from dataclasses import dataclass, field

from aerotrain.contract.event_log import Event
from aerotrain.contract.job import ReplicaName
from aerotrain_airflow.controller.ended import Ended


@dataclass(frozen=True, kw_only=True)
class Restart:
    """Replicas to restart now; those that still run are ended first.

    ``counts`` are their restart counts afterwards. ``avoid`` is a node on which a replica should
    not be placed again, ``memory`` the factor for its memory. Those in ``force`` are replaced at
    once, without waiting for the end of the old process or pod.
    """

    counts: Mapping[ReplicaName, int]
    because: str
    avoid: Mapping[ReplicaName, str] = field(default_factory=dict)
    memory: Mapping[ReplicaName, float] = field(default_factory=dict)
    force: frozenset[ReplicaName] = frozenset()

    @property
    def names(self) -> frozenset[ReplicaName]:
        return frozenset(self.counts)

    def __str__(self) -> str:
        """One sentence for the task's log."""
        return f"{self.because}; restarting {', '.join(map(str, sorted(self.names)))}"


@dataclass(frozen=True)
class Wait:
    """Nothing to do before ``until``, a time of ``time.time()``, unless something changes.

    ``look_again`` means that the observation is too old to tell whether a deadline was met.
    """

    until: float
    look_again: bool = False


Action = Ended | Restart | Wait


@dataclass(frozen=True, kw_only=True)
class Decision:
    """What to do, and the events to record before it is done."""

    action: Action
    events: tuple[Event, ...] = ()
