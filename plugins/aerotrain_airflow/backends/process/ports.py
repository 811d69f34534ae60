"""Loopback ports that stay ours from the moment they are chosen.

TensorFlow opens its port seconds after it was told the number, and dies where somebody else
was quicker. So the ports lie outside the range that the system hands out by itself, and each
is held by a file lock that the replica inherits: two launchers of a user never choose the
same one.
"""

import fcntl
import os
import socket
from collections.abc import Iterable, Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass
from pathlib import Path

from aerotrain.contract.errors import TemporaryError

#: Below Linux's ephemeral ports (32768 to 60999, ip_local_port_range in ip(7)).
PORTS = range(20000, 32000)


@dataclass(frozen=True)
class Port:
    """A port, and the open lock file that holds it; whoever inherits ``lock`` holds it too."""

    number: int
    lock: int


def reserve(count: int, owner: str) -> list[Port]:
    """``count`` free ports of loopback, held until the caller lets go and its heirs are gone.

    Raises:
        TemporaryError: so many are not free.
    """
    begin = os.getpid() * 37 % len(PORTS)
    ports: list[Port] = []
    for number in (*PORTS[begin:], *PORTS[:begin]):
        if len(ports) == count:
            return ports
        port = _locked(number, owner)
        if port is not None and not _is_free(number):
            release([port])
        elif port is not None:
            ports.append(port)
    release(ports)
    raise TemporaryError(
        f"{count} ports are needed and {len(ports)} of {PORTS.start} to {PORTS.stop - 1} "
        "are free; end what holds them"
    )


def hold(number: int, owner: str) -> Port | None:
    """A port that ``owner`` had, held again; None where it is held for somebody else by now."""
    port = _locked(number, owner)
    if port is None and _file_of(number).read_text() == owner:
        # By another process, on behalf of the same: no need to hold it twice.
        return Port(number, os.open(_file_of(number), os.O_RDONLY))
    return port


def _file_of(number: int) -> Path:
    # One folder for every launcher of this user on this machine, whatever its Airflow and
    # its TMPDIR. Launchers of other users begin elsewhere, by their process ids.
    folder = Path(f"/tmp/aerotrain-ports-{os.getuid()}")
    folder.mkdir(mode=0o700, exist_ok=True)
    return folder / str(number)


def _locked(number: int, owner: str) -> Port | None:
    lock = os.open(_file_of(number), os.O_CREAT | os.O_RDWR, 0o600)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(lock)
        return None
    os.truncate(lock, 0)
    os.pwrite(lock, owner.encode(), 0)
    return Port(number, lock)


def release(ports: Iterable[Port]) -> None:
    """Let go of ports; they stay held as long as a replica lives that has inherited them."""
    for port in ports:
        os.close(port.lock)


@contextmanager
def reserved_ports(count: int) -> Iterator[list[Port]]:
    """Ports as ``reserve`` finds them, let go at the end."""
    ports = reserve(count, f"process {os.getpid()}")
    try:
        yield ports
    finally:
        release(ports)


def _is_free(number: int) -> bool:
    with closing(socket.socket()) as probe:
        try:
            probe.bind(("", number))  # TensorFlow listens on every interface, whatever its address
        except OSError:
            return False
    return True
