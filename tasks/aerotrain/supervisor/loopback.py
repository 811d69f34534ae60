"""Keeps the servers of replicas on loopback.

TensorFlow's servers have no authentication, and listen on every interface whatever address they are
given. So the kernel stops each ``bind`` of a replica until its supervisor has answered, and for a
TCP socket on every interface the supervisor binds it to loopback instead (seccomp_unotify(2)).
Addresses of one interface, other sockets and all connections stay as they are. This needs no
privilege and Linux 5.6, but a container's own seccomp profile may deny it.
"""

import ctypes
import errno
import fcntl
import os
import platform
import select
import socket
import struct
from contextlib import suppress
from pathlib import Path

#: By machine: AUDIT_ARCH of audit.h, and the numbers of the system calls seccomp and bind.
_MACHINES = {"x86_64": (0xC000003E, 317, 49), "aarch64": (0xC00000B7, 277, 200)}

_PIDFD_GETFD = 438
_PR_SET_NO_NEW_PRIVS = 38
_SET_MODE_FILTER, _NEW_LISTENER = 1, 1 << 3
_ALLOW, _NOTIFY = 0x7FFF0000, 0x7FC00000

#: Instructions of a filter (bpf(4)): load a word, skip unless equal, return.
_LOAD, _UNLESS_EQUAL, _RETURN = 0x20, 0x15, 0x06
_INSTRUCTION = struct.Struct("HBBI")

#: struct seccomp_notif: id, thread, flags, system call, architecture, address, six arguments.
_NOTIFICATION = struct.Struct("QIIiIQ6Q")
#: struct seccomp_notif_resp: id, value, error, flags; by one of these the system call continues.
_RESPONSE = struct.Struct("QqiI")
_CONTINUE = 1
_RECEIVE = 3 << 30 | _NOTIFICATION.size << 16 | 0x2100
_SEND = 3 << 30 | _RESPONSE.size << 16 | 0x2101

#: The longest address that is read, that of an IPv6 socket.
_LONGEST = 28

#: The addresses of every interface: of IPv4, of IPv6, and of IPv4 as one of IPv6.
_EVERY_INTERFACE = (bytes(4), bytes(16), bytes(10) + b"\xff\xff" + bytes(4))

#: Seconds for a child process to try the filter.
_TRY_SECONDS = 10.0

#: The warning for a job with several replicas where ``why_open`` has a reason.
OPEN_SERVERS = (
    "TensorFlow's servers have no authentication, and could not be bound to loopback here (%s): "
    "every host that reaches this machine's ports can use them; keep the ports behind a firewall"
)

_LIBC = ctypes.CDLL(None, use_errno=True)


def filter_binds() -> int:
    """Stop each ``bind`` of this process and of those that it starts; return its listener.

    The process that gets the listener calls ``answer_bind`` when it can be read.

    Raises:
        OSError: the kernel or a container's profile does not allow it.
    """
    if platform.machine() not in _MACHINES:
        raise OSError(errno.ENOSYS, f"no filter for {platform.machine()}")
    architecture, seccomp, bind = _MACHINES[platform.machine()]
    program = b"".join(
        _INSTRUCTION.pack(*each)
        for each in (
            (_LOAD, 0, 0, 4),  # the architecture
            (_UNLESS_EQUAL, 0, 3, architecture),
            (_LOAD, 0, 0, 0),  # the system call
            (_UNLESS_EQUAL, 0, 1, bind),
            (_RETURN, 0, 0, _NOTIFY),
            (_RETURN, 0, 0, _ALLOW),
        )
    )
    instructions = ctypes.create_string_buffer(program, len(program))
    count = len(program) // _INSTRUCTION.size
    described = struct.pack("HP", count, ctypes.addressof(instructions))
    _checked(_LIBC.prctl(_PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0))  # without it, only root may filter
    return _checked(_LIBC.syscall(seccomp, _SET_MODE_FILTER, _NEW_LISTENER, described))


def answer_bind(listener: int) -> None:
    """Carry out the ``bind`` that waits at ``listener``, if one does."""
    ready = select.poll()
    ready.register(listener, select.POLLIN)
    if not any(event & select.POLLIN for _, event in ready.poll(0)):
        return  # the last process with the filter has ended
    notification = bytearray(_NOTIFICATION.size)
    with suppress(OSError):  # its process was killed in the meantime
        fcntl.ioctl(listener, _RECEIVE, notification)
        number, thread, _, _, _, _, *arguments = _NOTIFICATION.unpack(notification)
        error, flags = 0, 0
        try:
            if not _bind_to_loopback(thread, *arguments[:3]):
                flags = _CONTINUE
        except OSError as raised:
            error = -(raised.errno or errno.EIO)
        fcntl.ioctl(listener, _SEND, _RESPONSE.pack(number, 0, error, flags))


def _bind_to_loopback(thread: int, descriptor: int, address: int, length: int) -> bool:
    """Bind another process's socket to loopback; False if it asks for something else."""
    memory = os.open(f"/proc/{thread}/mem", os.O_RDONLY)
    try:
        wanted = os.pread(memory, min(length, _LONGEST), address)
    finally:
        os.close(memory)
    port = _port_of_every_interface(wanted)
    if port is None:
        return False
    with _socket_of(thread, descriptor) as found:
        if found.type != socket.SOCK_STREAM:
            return False
        loopback = "127.0.0.1"
        if found.family == socket.AF_INET6:
            only = found.getsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY)
            loopback = "::1" if only else f"::ffff:{loopback}"
        if not found.getsockname()[1]:  # otherwise a signal has interrupted this same call
            found.bind((loopback, port))
    return True


def _port_of_every_interface(address: bytes) -> int | None:
    """The port of a socket address (ip(7), ipv6(7)), if it is that of every interface."""
    family = int.from_bytes(address[:2], "little")
    begin, end = {int(socket.AF_INET): (4, 8), int(socket.AF_INET6): (8, 24)}.get(family, (0, 0))
    if not end or len(address) < end or address[begin:end] not in _EVERY_INTERFACE:
        return None
    return int.from_bytes(address[2:4], "big")


def _socket_of(thread: int, descriptor: int) -> socket.socket:
    """The same socket as another process's descriptor."""
    status = Path(f"/proc/{thread}/status").read_text()
    process = next(int(line.split()[1]) for line in status.splitlines() if line[:5] == "Tgid:")
    handle = os.pidfd_open(process)
    try:
        return socket.socket(fileno=_checked(_LIBC.syscall(_PIDFD_GETFD, handle, descriptor, 0)))
    finally:
        os.close(handle)


def _checked(result: int) -> int:
    if result < 0:
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
    return result


def why_open() -> str | None:
    """Why the servers of replicas would be open to the network; None if they would not be.

    A child process tries it, so call this before any thread starts.
    """
    ours, childs = socket.socketpair(socket.AF_UNIX, socket.SOCK_STREAM)
    with ours, childs:
        child = os.fork()
        if child == 0:
            try:
                os._exit(_tried(childs))
            finally:
                os._exit(errno.EIO)
        childs.close()
        _, listeners, _, _ = socket.recv_fds(ours, 1, 1)
        for each in listeners:
            select.select([each], [], [], _TRY_SECONDS)
            answer_bind(each)
            os.close(each)
    code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    return os.strerror(code) if code else None


def _tried(connection: socket.socket) -> int:
    """Bind to every interface under the filter; return 0 if it became loopback, else an errno."""
    try:
        listener = filter_binds()
        socket.send_fds(connection, [b"."], [listener])
        os.close(listener)
        with socket.socket() as tried:
            tried.bind(("", 0))
            return 0 if tried.getsockname()[0] == "127.0.0.1" else errno.EADDRNOTAVAIL
    except OSError as error:
        return error.errno or errno.EIO
