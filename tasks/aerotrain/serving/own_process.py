"""Run a part of an export in a process of its own."""

import signal
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from aerotrain.contract.errors import ExitCode, FinalError, TemporaryError
from aerotrain.serving.verify import parts

_SECONDS, _PART_SECONDS = 600, 10

#: Signals by which a process ends itself, in every try.
_CRASHES = (signal.SIGABRT, signal.SIGSEGV, signal.SIGBUS, signal.SIGILL, signal.SIGFPE)


def seconds_for(check: Path) -> int:
    """The longest time in seconds in which a model predicts the records in ``check``."""
    return _SECONDS + _PART_SECONDS * len(parts(check))


def last_line(arguments: Sequence[str], seconds: float | None) -> str:
    """The last line that Python prints with these arguments, within ``seconds`` if given.

    Raises:
        FinalError: it failed; the message is its last line. Unless it says by its exit code that
            the line is a sentence, all that it printed is printed.
        TemporaryError: it was ended by a signal.
    """
    # -P: without it Python would put our folder first on the import path.
    done = subprocess.run(
        [sys.executable, "-P", *arguments],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=seconds,
        check=False,
    )
    last = done.stdout.strip().rpartition("\n")[2]
    if done.returncode not in (0, ExitCode.FINAL):
        print(done.stdout, flush=True)
    if -done.returncode in _CRASHES:
        raise FinalError(f"its process crashed ({signal.Signals(-done.returncode).name}): {last}")
    if done.returncode < 0:
        raise TemporaryError(
            f"the process that verifies the export was ended by signal {-done.returncode}; "
            "if it had too little memory, give the job more"
        )
    if done.returncode:
        raise FinalError(last)
    return last
