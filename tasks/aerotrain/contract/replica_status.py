"""What the replicas of a training report of themselves while it runs, as objects in its store.

Any backend's replicas do, so a page about a run needs no access to processes or pods.
"""

import json
from collections.abc import Iterable
from dataclasses import asdict, dataclass, fields
from typing import Self

#: The folder under the prefix of a training, with one object for each replica.
FOLDER = "replicas"

#: Seconds between two reports of a process. One that has not reported for several of these is gone.
REPORTED_EVERY = 10.0
GONE_AFTER = 3.5 * REPORTED_EVERY

#: The most processes of a replica that are kept, of which each but the last has ended.
_MOST = 50


@dataclass(frozen=True, kw_only=True)
class ProcessStatus:
    """One process of a replica, which began at a time of ``time.time()`` on ``host``.

    ``ready`` is since when it trains or serves, and ``seen`` the time of its last report. Memory is
    in bytes: now, at most so far, and the limit of its container if it has one.
    """

    began: float
    host: str = ""
    ready: float | None = None
    seen: float = 0.0
    memory: int = 0
    peak: int = 0
    limit: int | None = None


def key_of(replica: str) -> str:
    """The key of the object of a replica."""
    return f"{FOLDER}/{replica}.json"


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
        """Read a status; fields of a later version are ignored.

        Raises:
            ValueError: the content is no status.
        """
        known = {each.name for each in fields(ProcessStatus)}
        try:
            found: Iterable[dict[str, object]] = json.loads(content)["processes"]
            return cls(
                tuple(
                    ProcessStatus(**{key: each[key] for key in known & set(each)})  # type: ignore[arg-type]
                    for each in found
                )
            )
        except (KeyError, TypeError, AttributeError) as error:
            raise ValueError(f"no status of a replica: {error}") from error
