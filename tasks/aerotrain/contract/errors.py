"""Final and temporary errors, and how a replica reports them: exit code and termination message."""

import errno
import json
import re
import socket
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from difflib import get_close_matches
from enum import IntEnum
from typing import Self
from urllib.error import HTTPError

#: What Keras puts around the message of an error in a layer: its heading, colors and arguments.
_OF_LAYER = re.compile(
    r".*Exception encountered when calling .*?\n\n(?:\x1b\[1m)?(.*?)(?:\x1b\[0m)?\n\n"
    r"(?:Call a|A)rguments received by .*",
    re.DOTALL,
)


class AerotrainError(Exception):
    """An expected failure of aerotrain; the message says what to do about it."""


class FinalError(AerotrainError):
    """A retry would fail the same way: the input, the code or the request is wrong."""


class TemporaryError(AerotrainError):
    """A retry may succeed: an external service was unavailable, slow, or disconnected."""


def backoff(first: float, longest: float) -> Iterator[float]:
    """Seconds to wait between tries of what fails temporarily: twice as long after each try."""
    while True:
        yield first
        first = min(2 * first, longest)


class SpecError(FinalError):
    """The description of a job is invalid."""


class SupersededError(FinalError):
    """Another chief has taken over this training's folder in the store."""


class ExitCode(IntEnum):
    """The exit codes of a replica: those of ``sysexits.h``, or 128 + signal."""

    OK = 0
    FINAL = 65  # EX_DATAERR: a FinalError, or an exception of the user's own code
    TEMPORARY = 75  # EX_TEMPFAIL: a TemporaryError, or the user's code did not reach a service
    FROZEN = 76  # the replica made no progress and ended itself
    SUPERSEDED = 77  # a SupersededError: a restart would compete with its successor
    TERMINATED = 143  # 128 + SIGTERM: preempted, and ended in time


#: How the lines of the error that ends a replica begin in its output, and its warnings, which its
#: task logs as such.
ERROR_PREFIX, WARNING_PREFIX = "error: ", "warning: "

#: Where Kubernetes reads the termination message of a failed container.
TERMINATION_LOG = "/dev/termination-log"

#: What Kubernetes keeps of a termination message, in bytes; a longer sentence is truncated.
LIMIT = 4000


@dataclass(frozen=True, kw_only=True)
class TerminationMessage:
    """Why a replica ended, for people and programs.

    It is a sentence, who did not answer the replica, and whether it was ended for lack of a
    heartbeat. Kubernetes and the task's log show the sentence as it is. The last line of the text
    is a JSON object if there is more for a program::

        no progress for 61 s after step 40, where 60 s are allowed: worker-0 does not answer
        {"unresponsive": ["worker-0"]}
    """

    reason: str
    unresponsive: frozenset[str] = frozenset()
    no_heartbeat: bool = False

    def to_text(self) -> str:
        """The message as it is written, at most ``LIMIT`` bytes long."""
        details = {"unresponsive": sorted(self.unresponsive), "no_heartbeat": self.no_heartbeat}
        said = {name: value for name, value in details.items() if value}
        end = f"\n{json.dumps(said)}" if said else ""
        room = LIMIT - len(end.encode())
        return self.reason.encode()[:room].decode(errors="ignore") + end

    @classmethod
    def parse(cls, text: str) -> Self:
        """Read what ``to_text`` wrote; any other text becomes the reason."""
        reason, _, last = text.rstrip().rpartition("\n")
        try:
            details = json.loads(last)
        except ValueError:
            details = None
        if not isinstance(details, dict) or not details.keys() & {"unresponsive", "no_heartbeat"}:
            return cls(reason=text.rstrip())
        return cls(
            reason=reason,
            unresponsive=_names(details.get("unresponsive")),
            no_heartbeat=details.get("no_heartbeat") is True,
        )


def _names(found: object) -> frozenset[str]:
    return frozenset(map(str, found)) if isinstance(found, Iterable) else frozenset()


def message_of(error: BaseException) -> str:
    """The message of an error of anyone's, without what Keras adds to one in a layer."""
    # The text of a KeyError is a literal, in one line.
    is_key = isinstance(error, KeyError) and len(error.args) == 1
    message = str(error.args[0] if is_key else error)
    found = _OF_LAYER.fullmatch(message)
    return found[1].strip() if found else str(error)


def is_unavailable(error: BaseException | None) -> bool:
    """Whether an error of the user's code, or one that led to it, is of a service that is away."""
    match error:
        case None | AerotrainError():
            return False
        case ConnectionError() | TimeoutError() | socket.gaierror():
            return True
        case OSError(errno=errno.ENETUNREACH | errno.EHOSTUNREACH):
            return True
        case HTTPError(code=code):
            return code == 429 or code >= 500
    return is_unavailable(error.__cause__ or error.__context__)


def counted(count: int, noun: str) -> str:
    """``"1 record"`` or ``"2,000 records"``."""
    return f"{count:,} {noun}" if count == 1 else f"{count:,} {noun}s"


def nearest(name: str, known: Iterable[str]) -> str:
    """``", did you mean 'x'?"`` for the known name nearest to ``name``, or nothing."""
    close = by_nearness(name, known, 0.6)
    return f", did you mean {close[0]!r}?" if close else ""


def by_nearness(name: str, known: Iterable[str], cutoff: float = 0.0) -> list[str]:
    """The known names from the nearest on, at least as near as ``cutoff``; case counts last."""
    by_letters: dict[str, list[str]] = {}
    for each in map(str, known):
        by_letters.setdefault(each.lower(), []).append(each)
    near = get_close_matches(name.lower(), by_letters, max(1, len(by_letters)), cutoff)
    groups = [by_letters[letters] for letters in near]
    return [each for group in groups for each in get_close_matches(name, group, len(group), 0.0)]
