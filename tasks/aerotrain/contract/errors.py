"""Final and temporary errors, and the exit codes by which a replica reports them."""

from enum import IntEnum


class AerotrainError(Exception):
    """An expected failure of aerotrain; the message says what to do about it."""


class FinalError(AerotrainError):
    """A retry would fail the same way: the input, the code or the request is wrong."""


class TemporaryError(AerotrainError):
    """A retry may succeed: an external service was unavailable, slow, or disconnected."""


class SpecError(FinalError):
    """The description of a job is invalid."""


class SupersededError(FinalError):
    """Another chief has taken over this training's folder in the store."""


class ExitCode(IntEnum):
    """The exit codes of a replica: those of ``sysexits.h``, or 128 + signal."""

    OK = 0
    FINAL = 65  # EX_DATAERR: a FinalError, or an exception of the user's own code
    TEMPORARY = 75  # EX_TEMPFAIL
    FROZEN = 76  # the replica made no progress and ended itself
    SUPERSEDED = 77  # a SupersededError: a restart would compete with its successor
    TERMINATED = 143  # 128 + SIGTERM: preempted, and ended in time
