"""What the controller decides: a value that a backend carries out."""

from collections.abc import Mapping
from dataclasses import dataclass, field

from aerotrain.contract.event_log import Event
from aerotrain.contract.job import ReplicaName
from aerotrain_airflow.controller.ended import Ended


@dataclass(frozen=True, kw_only=True)
class Restart:
    """Replicas to be started again now, and ended before where they still run.

    ``counts`` are the restart counts that they are to have afterwards. ``avoid`` is the node that
    a replica should not be placed on again, ``memory`` by how much its memory is multiplied.
    Those in ``force`` are replaced at once, without waiting for what is left of them.
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

    ``look_again`` says that what was seen is too old to tell whether a deadline was kept.
    """

    until: float
    look_again: bool = False


Action = Ended | Restart | Wait


@dataclass(frozen=True, kw_only=True)
class Decision:
    """What to do, and the events to be kept before it is done."""

    action: Action
    events: tuple[Event, ...] = ()
