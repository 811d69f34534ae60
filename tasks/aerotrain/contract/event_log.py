"""The ledger of a run: what happened to it and when, a JSON object a line.

Both sides write one: the chief what it did, the launcher what it saw and decided. At the end
they are merged by time.
"""

import json
from collections.abc import Iterable
from dataclasses import dataclass, fields
from enum import StrEnum
from typing import Any, Self


class EventType(StrEnum):
    """What an entry of the ledger tells of. ``seconds`` is how long it took, up to ``at``."""

    QUEUE = "queue"  # waited for a place to run
    START = "start"  # the set, or a process of it, began
    IMPORT = "import"  # until the user's module was loaded
    RESTORE = "restore"
    TRAIN = "train"  # steps that were done since the last entry of this kind
    SAVE_STALL = "save stall"  # no step began, because variables were copied
    TOLD_TO_GO = "told to go"
    DETECT = "detect"  # a loss was seen
    RESTART = "restart"  # replicas were restarted
    REWORK = "rework"  # steps that were done twice
    ADOPT = "adopt"  # another try took the set over
    END = "end"


@dataclass(frozen=True, kw_only=True)
class Event:
    """One thing that happened, at the time ``at`` of ``time.time()``.

    ``node`` is where a lost replica was, and which one a restarted replica avoids. ``memory`` is
    by how much more of it a restarted replica gets, and ``force`` that its former process is
    replaced without being waited for. ``unresponsive`` are the replicas that a lost one named.
    An entry may stand for several of its kind, of which it is the last: ``times``.
    """

    event: EventType
    at: float
    seconds: float = 0.0
    step: int | None = None
    replica: str = ""
    generation: int = 0
    kind: str = ""
    because: str = ""
    node: str = ""
    memory: float = 1.0
    force: bool = False
    unresponsive: tuple[str, ...] = ()
    times: int = 1

    def to_json(self) -> str:
        """One line without its end, of what is not as by default."""
        values = {each.name: getattr(self, each.name) for each in fields(self)}
        defaults = {each.name: each.default for each in fields(self)}
        return json.dumps({name: each for name, each in values.items() if each != defaults[name]})

    @classmethod
    def from_dict(cls, data: dict[str, Any]) -> Self:
        """Read one entry; what a later version has written beside is left out."""
        known = {each.name for each in fields(cls)}
        values = {name: value for name, value in data.items() if name in known}
        unresponsive = tuple(values.get("unresponsive", ()))
        return cls(**{**values, "event": EventType(values["event"]), "unresponsive": unresponsive})


def read(lines: Iterable[str]) -> list[Event]:
    """The entries of a ledger; what was cut off, or is of a later version, is left out."""
    entries = []
    for line in lines:
        try:
            entries.append(Event.from_dict(json.loads(line)))
        except (ValueError, KeyError, TypeError):
            continue
    return entries
