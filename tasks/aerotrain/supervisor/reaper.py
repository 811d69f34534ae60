"""The reaper: a small process above each replica, like an init in a container.

It becomes the parent of the replica's orphans, kills all of them after the replica has ended, and
exits with the replica's exit code. When the supervisor is killed, its reapers kill their replicas.
A reaper ignores signals that are sent to all processes of a machine, so that its replica has time
to save.
"""

import os
import signal
from collections.abc import Callable
from typing import NoReturn

from aerotrain.supervisor.processes import (
    adopt_orphans,
    close_all_but,
    descendants,
    end_with,
    reset_signals,
    send,
    wait_until,
)

#: Seconds to wait for killed processes to end; one in a system call may take longer.
_GOING = 2.0

#: The signal that a reaper receives when the supervisor has ended.
_ORPHANED = signal.SIGUSR1

_NOT_FOR_IT = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)

#: The exit code of a reaper that could not start its replica, as in a shell.
_CANNOT_START = 127


def start_reaped(become: Callable[[], NoReturn]) -> tuple[int, int]:
    """Start a process that calls ``become``; return the process ids of its reaper and of itself.

    Raises:
        OSError: the machine has no resources for it.
    """
    reading, writing = os.pipe()
    supervisor = os.getpid()
    try:
        reaper = os.fork()
    except OSError:
        os.close(reading)
        os.close(writing)
        raise
    if reaper == 0:
        try:
            _reap(become, supervisor, writing)
        finally:
            os._exit(_CANNOT_START)
    os.close(writing)
    with os.fdopen(reading) as said:
        return reaper, int(said.read() or 0)


def _reap(become: Callable[[], NoReturn], supervisor: int, writing: int) -> NoReturn:
    reset_signals()
    signal.signal(_ORPHANED, lambda *_: _end(128 + signal.SIGKILL))
    for number in _NOT_FOR_IT:
        signal.signal(number, signal.SIG_IGN)
    end_with(supervisor, _ORPHANED)
    adopt_orphans()
    reaper = os.getpid()
    replica = os.fork()
    if replica == 0:
        try:
            reset_signals()
            os.setsid()
            end_with(reaper, signal.SIGKILL)
            become()
        finally:
            os._exit(_CANNOT_START)
    os.write(writing, str(replica).encode())
    close_all_but(())
    while True:
        pid, status = os.wait()
        if pid == replica:
            code = os.waitstatus_to_exitcode(status)
            _end(code if code >= 0 else 128 - code)


def _end(code: int) -> NoReturn:
    """Kill all descendants, and exit with ``code``."""
    signal.signal(_ORPHANED, signal.SIG_IGN)

    def is_alone() -> bool:
        left = descendants(os.getpid())
        send(left, signal.SIGKILL)
        return not left

    wait_until(is_alone, _GOING)
    os._exit(code)
