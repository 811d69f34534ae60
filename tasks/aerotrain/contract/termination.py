"""The termination message of a replica: why it ended, for people and programs.

The first part is a sentence, which Kubernetes and the task's log show as it is. The last line is a
JSON object if there is more for a program::

    no progress for 61 s after step 40, where 60 s are allowed: worker-0 does not answer
    {"unresponsive": ["worker-0"]}
"""

import json
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Self

#: What Kubernetes keeps of a message, in bytes; the sentence of a longer one is truncated.
LIMIT = 4000


@dataclass(frozen=True, kw_only=True)
class TerminationMessage:
    """Why a replica ended, and the names of the replicas that did not answer it."""

    reason: str
    unresponsive: frozenset[str] = frozenset()

    def to_text(self) -> str:
        """The message as it is written, at most ``LIMIT`` bytes long."""
        more = f"\n{json.dumps({'unresponsive': sorted(self.unresponsive)})}"
        end = more if self.unresponsive else ""
        room = LIMIT - len(end.encode())
        return self.reason.encode()[:room].decode(errors="ignore") + end

    @classmethod
    def parse(cls, text: str) -> Self:
        """Read what ``to_text`` wrote; any other text becomes the reason."""
        reason, _, last = text.rstrip().rpartition("\n")
        try:
            names = json.loads(last)["unresponsive"]
        except (ValueError, TypeError, KeyError):
            return cls(reason=text.rstrip())
        return cls(reason=reason, unresponsive=_names(names))


def _names(found: object) -> frozenset[str]:
    return frozenset(map(str, found)) if isinstance(found, Iterable) else frozenset()
