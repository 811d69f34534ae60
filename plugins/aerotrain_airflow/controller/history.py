"""What the event log of a group says of one replica."""

from collections.abc import Sequence
from dataclasses import dataclass

from aerotrain.contract.job import ReplicaName
from aerotrain.contract.ledger import Entry, What


@dataclass(frozen=True)
class History:
    """The events of one replica, in the order of time."""

    events: Sequence[Entry]

    @classmethod
    def of(cls, name: ReplicaName, events: Sequence[Entry]) -> "History":
        return cls([each for each in events if each.replica == str(name)])

    @property
    def restarts(self) -> int:
        """How often it is to have been restarted by now."""
        return max((each.generation for each in self._all(What.RESTART)), default=0)

    @property
    def last_restart(self) -> Entry | None:
        return next(reversed(self._all(What.RESTART)), None)

    @property
    def loss(self) -> Entry | None:
        """The loss that was recorded since its last restart."""
        restarts = self.restarts
        found = (each for each in self._all(What.DETECT) if each.generation == restarts)
        return next(found, None)

    @property
    def earlier(self) -> list[Entry]:
        """Its losses before its last restart."""
        restarts = self.restarts
        return [each for each in self._all(What.DETECT) if each.generation < restarts]

    def _all(self, what: What) -> list[Entry]:
        return [each for each in self.events if each.event is what]
