"""Where the processes of a test listen, and which of their ports the network can reach."""

import ipaddress
import socket
from collections.abc import Iterable
from typing import NamedTuple

import psutil

from aerotrain.supervisor.processes import descendants


class Address(NamedTuple):
    host: str
    port: int

    @property
    def is_loopback(self) -> bool:
        return ipaddress.ip_address(self.host.removeprefix("::ffff:")).is_loopback


def listening(processes: Iterable[psutil.Process | int]) -> list[Address]:
    """The addresses on which processes, or those of these ids, and their descendants listen by TCP.

    Any of them, such as a worker of PostgreSQL, may end at any time.
    """
    pids = [each if isinstance(each, int) else each.pid for each in processes]
    members = {member for pid in pids for member in (pid, *descendants(pid))}
    found = {
        Address(each.laddr.ip, each.laddr.port)
        for each in psutil.net_connections("tcp")
        if each.pid in members and each.status == psutil.CONN_LISTEN
    }
    return sorted(found)


def open_to_network(addresses: Iterable[Address]) -> list[Address]:
    """The addresses that are not loopback's, or whose port also takes connections at another one.

    A server on every interface takes them at 127.0.0.2, too, and one on 127.0.0.1 does not.
    """
    return [each for each in addresses if not each.is_loopback or _takes_connections(each.port)]


def _takes_connections(port: int) -> bool:
    try:
        socket.create_connection(("127.0.0.2", port), timeout=2).close()
    except OSError:
        return False
    return True
