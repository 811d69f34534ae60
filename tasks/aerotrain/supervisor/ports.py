"""Loopback ports that stay reserved from the moment they are chosen.

TensorFlow opens its port seconds after it gets the number, and fails if another program was faster.
So the ports are outside the range from which the kernel assigns ports, and each is reserved by a
name that the replica inherits: two launchers never choose the same one.

The names are those of abstract Unix sockets (unix(7)). They are free again once the last process
that has them has ended, all users of the machine share them as they share ports, and no file is
made that another user could have replaced by a link.
"""

import errno
import hashlib
import os
import socket
from collections.abc import Iterable, Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass

from aerotrain.contract.errors import TemporaryError
from aerotrain.contract.job import Job
from aerotrain.contract.replicas import ReplicaName

#: Below Linux's ephemeral ports (32768 to 60999, ip_local_port_range in ip(7)).
PORTS = range(20000, 32000)


@dataclass(frozen=True)
class Port:
    """A port, and the open socket that reserves it, also for a process that inherits ``lock``."""

    number: int
    lock: int


def reserve(count: int, owner: str) -> list[Port]:
    """``count`` free ports of loopback, reserved until the caller and its children release them.

    An owner gets the same ports each time, if they are free.

    Raises:
        TemporaryError: there are not enough free ports.
    """
    begin = int(hashlib.sha256(owner.encode()).hexdigest(), 16) % len(PORTS)
    ports: list[Port] = []
    for number in (*PORTS[begin:], *PORTS[:begin]):
        if len(ports) == count:
            return ports
        port = hold(number)
        if port is not None and not _is_free(number):
            release([port])
        elif port is not None:
            ports.append(port)
    release(ports)
    raise TemporaryError(
        f"{count} ports are needed and {len(ports)} of {PORTS.start} to {PORTS.stop - 1} "
        "are free; end what holds them"
    )


def hold(number: int) -> Port | None:
    """Reserve this port; None if it is reserved."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as made:
        try:
            made.bind(f"\0aerotrain-port-{number}")
        except OSError as error:
            if error.errno != errno.EADDRINUSE:
                raise
            return None
        return Port(number, made.detach())


def release(ports: Iterable[Port]) -> None:
    """Release ports; they stay reserved while a replica runs that has inherited them."""
    for port in ports:
        os.close(port.lock)


@contextmanager
def reserved_ports(count: int, owner: str | None = None) -> Iterator[list[Port]]:
    """Ports from ``reserve``, by default of this process, released at the end."""
    ports = reserve(count, owner or f"process {os.getpid()}")
    try:
        yield ports
    finally:
        release(ports)


@contextmanager
def reserved_addresses(job: Job) -> Iterator[tuple[dict[ReplicaName, str], list[Port]]]:
    """An address of this machine for each replica of the job, and the ports, as ``reserved_ports``.

    Raises:
        TemporaryError: there are not enough free ports.
    """
    names = list(job.names())
    with reserved_ports(len(names)) as ports:
        yield addresses_of(names, [port.number for port in ports]), ports


def addresses_of(names: Sequence[ReplicaName], ports: Sequence[int]) -> dict[ReplicaName, str]:
    """The addresses of loopback with these ports."""
    return {name: f"127.0.0.1:{port}" for name, port in zip(names, ports, strict=True)}


def _is_free(number: int) -> bool:
    with closing(socket.socket()) as probe:
        # As servers do, which take a port whose last connections the kernel still remembers.
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("", number))  # TensorFlow listens on every interface, whatever its address
        except OSError:
            return False
    return True


def listens(port: int) -> bool:
    """Whether a server listens at this port of loopback."""
    with closing(socket.socket()) as probe:
        return probe.connect_ex(("127.0.0.1", port)) == 0
