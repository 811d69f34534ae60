"""The event log of a run: what happened and when, one JSON object per line.

The chief and the launcher each write one: the chief records what it did, the launcher what it
observed and decided. At the end the two are merged by time.
"""

import json
from collections.abc import Iterable
from dataclasses import dataclass, fields
from enum import StrEnum

from aerotrain.contract import validation
from aerotrain.contract.errors import SpecError


class EventType(StrEnum):
    """The type of an event. The event's ``seconds`` is its duration, which ends at ``at``."""

    START = "start"  # the replica group, or one of its processes, started
    IMPORT = "import"  # until the user's module was loaded
    RESTORE = "restore"
    READY = "ready"  # the first steps of a process were run, which include the compilation
    TRAIN = "train"  # steps that were run since the last event of this type or READY
    SAVE_STALL = "save stall"  # no step started, because variables were read for a checkpoint
    PREEMPTED = "preempted"
    DETECT = "detect"  # a failure was observed
    RESTART = "restart"  # replicas were restarted
    RESIZE = "resize"  # the group asks for other workers than before, or goes on with others
    STRAGGLER = "straggler"  # the steps of a replica take much longer than those of others
    ADOPT = "adopt"  # another attempt took over the replica group
    END = "end"  # in the log of a replica group, with the state of the job as ``kind``


@dataclass(frozen=True, kw_only=True)
class Event:
    """One event, at the time ``at`` of ``time.time()``.

    ``restarts`` is the replica's restart count. ``node`` is where a failed replica ran, and the
    node that a restarted replica avoids. ``memory`` is the factor by which a restarted replica's
    memory grows. ``force`` means that its former process is replaced without waiting for its end.
    ``unresponsive`` are the replicas that a failed one named as such. After a resize, ``workers``
    are asked for, and those in ``without`` take no part. ``times`` is the number of
    equal events that this one stands for; it is the last of them.
    """

    event: EventType
    at: float
    seconds: float = 0.0
    step: int | None = None
    replica: str = ""
    restarts: int = 0
    kind: str = ""
    because: str = ""
    node: str = ""
    memory: float = 1.0
    force: bool = False
    unresponsive: tuple[str, ...] = ()
    workers: int = 0
    without: tuple[str, ...] = ()
    times: int = 1

    def to_json(self) -> str:
        """One line without a line end; fields that have their default value are omitted."""
        values = {each.name: getattr(self, each.name) for each in fields(self)}
        defaults = {each.name: each.default for each in fields(self)}
        return json.dumps({name: each for name, each in values.items() if each != defaults[name]})


def read(lines: Iterable[str]) -> list[Event]:
    """The events of a log; truncated lines and events of a later version are skipped."""
    entries = []
    for line in lines:
        try:
            entries.append(validation.read(Event, json.loads(line), strict=False))
        except (ValueError, SpecError):
            continue
    return entries
