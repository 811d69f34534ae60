"""Reserved ports: each has one owner on the whole machine, and stale files reserve nothing."""

import os
import socket
import subprocess
from contextlib import suppress

import pytest

from aerotrain.supervisor.ports import (
    hold,
    release,
    reserve,
    reserved_ports,
)


def test_a_reserved_port_has_only_one_owner() -> None:
    with reserved_ports(3) as ours, reserved_ports(3) as theirs:
        assert len({port.number for port in (*ours, *theirs)}) == 6


@pytest.mark.process
@pytest.mark.skipif(os.geteuid() != 0, reason="only root can be another user")
def test_two_users_never_have_the_same_port() -> None:
    with reserved_ports(1) as (ours,):
        other = os.fork()
        if other == 0:
            os.setuid(65534)
            with suppress(BaseException):
                os._exit(0 if hold(ours.number) is None else 1)
            os._exit(2)
        assert os.waitpid(other, 0)[1] == 0


@pytest.mark.process
def test_a_port_stays_reserved_by_a_process_that_inherits_it() -> None:
    [port] = reserve(1, "a set")
    with subprocess.Popen(["cat"], stdin=subprocess.PIPE, pass_fds=[port.lock]) as heir:
        release([port])
        assert hold(port.number) is None
        heir.communicate()
    free = hold(port.number)
    assert free is not None
    release([free])


def test_an_owner_gets_its_port_again_although_a_client_has_just_used_it() -> None:
    with (
        reserved_ports(1, "a server") as [first],
        socket.create_server(("127.0.0.1", first.number)) as server,
    ):
        client = socket.create_connection(server.getsockname())
        server.accept()[0].close()  # so the kernel remembers the connection for a minute
        client.recv(1)
        client.close()
    with reserved_ports(1, "a server") as [again]:
        assert again.number == first.number
