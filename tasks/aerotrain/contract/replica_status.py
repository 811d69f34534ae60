"""What the replicas of a training report of themselves while it runs, as objects in its store.

Any backend's replicas do, so a page about a run needs no access to processes or pods.
"""

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Self

from aerotrain.contract.errors import SpecError
from aerotrain.contract.layout import REPLICAS
from aerotrain.contract.validation import read

#: Seconds between two reports of a process. One that has not reported for several of these is gone.
REPORTED_EVERY = 10.0
GONE_AFTER = 3.5 * REPORTED_EVERY

#: The most processes of a replica that are kept, of which each but the last has ended.
_MOST = 50


@dataclass(frozen=True, kw_only=True)
class StepTime:
    """The mean time of the last steps of a replica, in seconds.

    ``input`` of it is the wait for batches. ``communication`` is what is neither that nor
    computing: the exchange of weights and gradients, and the wait for slower replicas. It is None
    where it is not known, or where nothing is exchanged.
    """

    seconds: float
    input: float
    communication: float | None = None


@dataclass(frozen=True, kw_only=True)
class ProcessStatus:
    """One process of a replica, which began at a time of ``time.time()`` on the machine ``host``.

    ``ready`` is since when it trains or serves, and ``seen`` the time of its last report. Memory is
    in bytes: now, at most so far, and the limit of its container if it has one. ``step_times`` has
    those of the replicas, by name, whose steps this process runs or schedules.
    """

    began: float
    host: str = ""
    ready: float | None = None
    seen: float = 0.0
    memory: int = 0
    peak: int = 0
    limit: int | None = None
    step_times: Mapping[str, StepTime] = field(default_factory=dict)


def key_of(replica: str) -> str:
    """The key of the object of a replica."""
    return f"{REPLICAS}/{replica}.json"


@dataclass(frozen=True)
class ReplicaStatus:
    """The processes of a replica in the order of their starts."""

    processes: tuple[ProcessStatus, ...]

    def followed_by(self, process: ProcessStatus) -> Self:
        """The status with one more process."""
        return type(self)((*self.processes, process)[-_MOST:])

    def to_json(self) -> bytes:
        return json.dumps(
            {"version": 1, "processes": [asdict(each) for each in self.processes]}
        ).encode()

    @classmethod
    def from_json(cls, content: bytes) -> Self:
        """Read a status.

        Raises:
            ValueError: the content is no status.
        """
        try:
            return cls(
                tuple(
                    read(ProcessStatus, each, strict=False)
                    for each in json.loads(content)["processes"]
                )
            )
        except (KeyError, TypeError, SpecError) as error:
            raise ValueError(f"no status of a replica: {error}") from error
