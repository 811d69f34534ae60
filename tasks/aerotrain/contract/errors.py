"""The two kinds of failure, and the exit code by which a replica tells which it was."""

from enum import IntEnum


class AerotrainError(Exception):
    """Any failure that aerotrain itself explains; the message says what to do about it."""


class FinalError(AerotrainError):
    """Another try would fail the same way: the input, the code or the request is wrong."""


class TemporaryError(AerotrainError):
    """Another try may succeed: something outside was away, slow or lost."""


class SpecError(FinalError):
    """The description of a job cannot run as it is written."""


class SupersededError(FinalError):
    """Another chief has taken over the place in the store where this one trained."""


class ExitCode(IntEnum):
    """How a replica ends. The values of ``sysexits.h`` where it has one, 128 + signal else."""

    OK = 0
    FINAL = 65  # EX_DATAERR: a FinalError, or an exception of the user's own code
    TEMPORARY = 75  # EX_TEMPFAIL
    FROZEN = 76  # made no progress, and ended itself
    SUPERSEDED = 77  # a SupersededError: to start it again would be a fight with its successor
    TERMINATED = 143  # 128 + SIGTERM: told to go, and went
