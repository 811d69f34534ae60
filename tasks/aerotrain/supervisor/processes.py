"""Linux functions of a supervisor: the descendants of a process, and linked ends (prctl(2))."""

import ctypes
import os
import signal
import time
from collections.abc import Callable, Collection
from contextlib import suppress
from pathlib import Path

import psutil

_PR_SET_PDEATHSIG, _PR_SET_NAME, _PR_SET_CHILD_SUBREAPER = 1, 15, 36

#: Loaded before any fork.
_LIBC = ctypes.CDLL(None, use_errno=True)

#: Seconds between two checks whether a process has ended.
_LOOK_EVERY = 0.005


def adopt_orphans() -> None:
    """From now on, descendants whose parent ends become children of this process."""
    _LIBC.prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)


def end_with(parent: int, number: signal.Signals) -> None:
    """Receive signal ``number`` when ``parent`` ends; exit at once if it has already ended."""
    _LIBC.prctl(_PR_SET_PDEATHSIG, number, 0, 0, 0)
    if os.getppid() != parent:
        os._exit(128 + number)


def name_process(name: str) -> None:
    """Set the name that ``ps -o comm`` shows for this process, at most 15 bytes."""
    _LIBC.prctl(_PR_SET_NAME, name.encode()[:15], 0, 0, 0)


def descendants(pid: int) -> list[int]:
    """The live processes that descend from ``pid``, parents first."""
    with suppress(psutil.NoSuchProcess):
        children = psutil.Process(pid).children(recursive=True)
        return [each.pid for each in children if is_alive(each.pid)]
    return []


def is_alive(pid: int) -> bool:
    """Whether the process exists and has not ended yet."""
    with suppress(psutil.NoSuchProcess):
        return bool(psutil.Process(pid).status() != psutil.STATUS_ZOMBIE)
    return False


def send(pids: Collection[int], number: signal.Signals) -> None:
    """Send a signal to processes that may have ended."""
    for pid in pids:
        with suppress(ProcessLookupError, PermissionError):
            os.kill(pid, number)  # noqa: TID251 -- the one place


def session_of(pid: int) -> int | None:
    """The session of a process that may have ended."""
    try:
        return os.getsid(pid)
    except ProcessLookupError:
        return None


def wait_until(is_so: Callable[[], bool], seconds: float) -> bool:
    """Wait until ``is_so`` is true; return whether that was within ``seconds``."""
    until = time.monotonic() + seconds
    while not is_so():
        if time.monotonic() > until:
            return False
        time.sleep(_LOOK_EVERY)
    return True


def close_all_but(kept: Collection[int]) -> None:
    """Close every open file except the three standard streams and ``kept``."""
    for each in open_files():
        if each > 2 and each not in kept:
            with suppress(OSError):  # the descriptor of the listing itself
                os.close(each)


def umask() -> int:
    """The umask of this process, read without setting it."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1], 8) for line in lines if line.startswith("Umask:"))


def open_files() -> list[int]:
    """The open descriptors of this process."""
    return [int(path.name) for path in Path("/proc/self/fd").iterdir()]


def reset_signals() -> None:
    """Reset signal handling to that of a new process."""
    signal.set_wakeup_fd(-1)
    for number in (signal.SIGTERM, signal.SIGCHLD, signal.SIGHUP, signal.SIGUSR1):
        signal.signal(number, signal.SIG_DFL)
    signal.signal(signal.SIGINT, signal.default_int_handler)
    signal.pthread_sigmask(signal.SIG_SETMASK, [])
