"""Loopback ports that stay ours from the moment they are chosen.

TensorFlow opens its port seconds after it was told the number, and dies where somebody else
was quicker. So the ports lie outside the range that the system hands out by itself, and each
is held by a file lock that the replica inherits: two launchers of a user never choose the
same one.
"""

import fcntl
import os
import socket
from collections.abc import Iterator
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


@contextmanager
def reserved_ports(count: int) -> Iterator[list[Port]]:
    """``count`` free ports of loopback, held until the caller and its heirs are gone.

    Raises:
        TemporaryError: so many are not free.
    """
    # One folder for every launcher of this user on this machine, whatever its Airflow and
    # its TMPDIR. Launchers of other users begin elsewhere, by their process ids.
    folder = Path(f"/tmp/aerotrain-ports-{os.getuid()}")
    folder.mkdir(mode=0o700, exist_ok=True)
    begin = os.getpid() * 37 % len(PORTS)
    ports: list[Port] = []
    try:
        for number in (*PORTS[begin:], *PORTS[:begin]):
            if len(ports) == count:
                break
            lock = os.open(folder / str(number), os.O_CREAT | os.O_RDWR, 0o600)
            if _locked(lock) and _is_free(number):
                ports.append(Port(number, lock))
            else:
                os.close(lock)
        if len(ports) < count:
            raise TemporaryError(
                f"{count} ports are needed and {len(ports)} of {PORTS.start} to {PORTS.stop - 1} "
                "are free; end what holds them"
            )
        yield ports
    finally:
        for port in ports:
            os.close(port.lock)


def _locked(lock: int) -> bool:
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def _is_free(number: int) -> bool:
    with closing(socket.socket()) as probe:
        try:
            probe.bind(("", number))  # TensorFlow listens on every interface, whatever its address
        except OSError:
            return False
    return True
