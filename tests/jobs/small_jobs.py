"""Modules that the launcher's tests run as jobs: what a replica may do, without TensorFlow."""

import gc
import os
import random
import signal
import socket
import subprocess
import sys
import tempfile
import time
import uuid
from pathlib import Path
from typing import Any

import psutil

from aerotrain.contract.errors import FinalError, TemporaryError
from aerotrain.replica import Preempted, Replica


def run(replica: Replica) -> Any:
    """Do what the job's argument ``does`` says for this replica's role."""
    does = replica.job.arguments.get(replica.name.role, "serve")
    print(f"hello from {replica.name} in {Path.cwd().name}", flush=True)
    return globals()[does](replica)


def serve(replica: Replica) -> None:
    """Wait to be ended, as workers and ps do."""
    time.sleep(600)


def finish(replica: Replica) -> dict[str, Any]:
    """Succeed once every other replica of the group has said hello."""
    replicas, count = replica.scratch.parent.parent, len(list(replica.job.names()))
    while sum("hello" in log.read_text() for log in replicas.glob("*/log")) < count:
        time.sleep(0.01)
    print("no line end at the end", end="", flush=True)
    return {"stdin": sys.stdin.read(), "scratch": str(replica.scratch)}


def finish_late(replica: Replica) -> None:
    """Succeed some time after every replica has said hello."""
    time.sleep(3)
    finish(replica)


def save_late(replica: Replica) -> None:
    """Save when preempted, for longer than ended replicas live; say how many are there then."""
    replica.notice.promise()
    print("promised", flush=True)
    while not replica.notice.given():
        time.sleep(0.01)
    time.sleep(4)
    raise Preempted(f"saved, with {len(replicas_of(os.getppid()))} replicas")


def replicas_of(reaper: int) -> list[int]:
    """The replicas of the supervisor of ``reaper``."""
    supervisor = psutil.Process(reaper).parent()
    reapers = supervisor.children() if supervisor else []
    return [child.pid for each in reapers for child in each.children()]


def await_return(replica: Replica) -> int:
    """Succeed once the replicas that the argument ``awaited`` names have said hello so often."""
    for name, times in replica.job.arguments["awaited"].items():
        log = replica.scratch.parent.parent / name / "log"
        while not log.exists() or log.read_text().count(f"hello from {name}") < times:
            time.sleep(0.01)
    return int(os.environ["AEROTRAIN_RESTARTS"])


def echo(replica: Replica) -> dict[str, Any]:
    """Return this replica's arguments and the names of its environment variables."""
    finish(replica)
    return {"arguments": dict(replica.job.arguments), "environment": sorted(os.environ)}


def fail(replica: Replica) -> None:
    raise FinalError("the label 7 is outside 0 to 3")


def fail_for_now(replica: Replica) -> None:
    raise TemporaryError("the store is away")


def crash(replica: Replica) -> None:
    raise ZeroDivisionError("a bug of the user's own")


def vanish(replica: Replica) -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def vanish_once(replica: Replica) -> None:
    """Vanish, but serve after a restart."""
    if replica.restarts == 0:
        vanish(replica)
    serve(replica)


def leave_grandchildren(replica: Replica) -> None:
    """Start children that ignore SIGTERM, and serve.

    One leaves this session, one has an empty environment, one is an ordinary child.
    """
    deaf = "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); time.sleep(600)"
    for other in ({}, {"start_new_session": True}, {"env": {}}):
        child = subprocess.Popen([sys.executable, "-c", deaf], **other)
        print(f"child {child.pid}", flush=True)
    serve(replica)


def serve_everywhere(replica: Replica) -> None:
    """Listen on every interface by each family, as servers do, in a process and in its child."""
    servers = [socket.create_server(("", 0))]
    addresses = (("::", False), ("::", True), ("::ffff:0.0.0.0", True))
    for host, dual in addresses if socket.has_dualstack_ipv6() else ():
        servers.append(socket.create_server((host, 0), family=socket.AF_INET6, dualstack_ipv6=dual))
    if os.fork() == 0:
        servers = [socket.create_server(("", 0))]
    print(f"listening at {servers}", flush=True)
    for each in servers:  # each is reached at the loopback address of its family
        host = "::1" if each.getsockname()[0] == "::1" else "127.0.0.1"
        socket.create_connection((host, each.getsockname()[1])).close()
    print("reached", flush=True)
    time.sleep(600)


def print_with_a_child(replica: Replica) -> None:
    """Print many lines at once with a child, and end."""
    child = os.fork()
    for _ in range(2000):
        print("a whole line")
    if not child:
        os._exit(0)
    os.waitpid(child, 0)


def tell_all(replica: Replica) -> dict[str, Any]:
    """Report what a replica finds at its start, to be compared with other replicas."""
    import numpy as np

    import aerotrain.training  # noqa: F401 -- it settles some variables, wherever it is imported

    signals = (signal.SIGINT, signal.SIGCHLD, signal.SIGPIPE, signal.SIGHUP)
    status = Path("/proc/self/status").read_text().splitlines()
    files = {each.name: str(each.resolve()) for each in Path("/proc/self/fd").iterdir()}
    return {
        "same": {
            "environment": dict(os.environ),
            "arguments": sys.argv,
            "path": sys.path,
            "folder": str(Path.cwd()),
            "temporary folder": tempfile.gettempdir(),
            "collects garbage": gc.isenabled(),
            "leads its session": os.getsid(0) == os.getpid(),
            "signals": [repr(signal.getsignal(each)) for each in signals],
            "status": [line for line in status if line.startswith(("Umask", "SigBlk", "SigIgn"))],
            "main": sys.modules["__main__"].__spec__.name,  # type: ignore[union-attr]
            "files": {name: file for name, file in files.items() if "/proc/" not in file},
        },
        "fresh": [random.random(), float(np.random.rand()), uuid.uuid4().hex],
        "imported": "tensorflow" in sys.modules,
    }
