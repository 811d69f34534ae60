"""Modules that run as pods in tests; their replicas reach each other only over the network."""

import json
import os
import signal
import socket
import sys
import time
from contextlib import closing
from typing import Any

from aerotrain.contract.errors import FinalError
from aerotrain.replica import Preempted, Replica
from aerotrain.store import open_store

DEADLINE = 300.0


def run(replica: Replica) -> Any:
    """Do what the job's argument says for this replica's role."""
    print(f"hello from {replica.name}", flush=True)
    return globals()[replica.job.arguments.get(replica.name.role, "serve")](replica)


def serve(replica: Replica) -> None:
    """Respond to every connection and wait to be ended, as workers and ps do."""
    if "TF_CONFIG" not in os.environ:
        time.sleep(600)
    config = json.loads(os.environ["TF_CONFIG"])
    own = config["cluster"][config["task"]["type"]][config["task"]["index"]]
    with closing(socket.create_server(("", int(own.rsplit(":", 1)[1])))) as server:
        while True:
            connection, _ = server.accept()
            with connection:
                connection.sendall(str(replica.name).encode())


def meet(replica: Replica) -> dict[str, Any]:
    """Connect to every other replica by the address that TensorFlow would use."""
    cluster = json.loads(os.environ["TF_CONFIG"])["cluster"]
    others = [each for role, all_ in cluster.items() if role != "chief" for each in all_]
    answers = sorted(map(_call, others))
    print(f"met {', '.join(answers)}", flush=True)
    return {"met": answers, "user": os.getuid(), "python": sys.version_info[:2]}


def _call(address: str) -> str:
    host, port = address.rsplit(":", 1)
    until = time.monotonic() + DEADLINE
    while True:
        try:
            with socket.create_connection((host, int(port)), timeout=5) as connection:
                return connection.recv(100).decode()
        except OSError:
            if time.monotonic() > until:
                raise
            time.sleep(0.1)


def report(replica: Replica) -> None:
    """Report in the store that this restart of the replica has begun, and serve."""
    _lives(replica).put(f"{replica.name}/{os.environ.get('AEROTRAIN_RESTARTS', '0')}", b"here")
    serve(replica)


def await_return(replica: Replica) -> str:
    """Succeed once the replicas that the argument ``awaited`` names have restarted so often."""
    lives = _lives(replica)
    lives.put(f"{replica.name}/{os.environ.get('AEROTRAIN_RESTARTS', '0')}", b"here")
    until = time.monotonic() + replica.job.arguments.get("deadline", DEADLINE)
    awaited = {f"{name}/{life}" for name, life in replica.job.arguments["awaited"].items()}
    while missing := awaited - {each.key for each in lives.list()}:
        if time.monotonic() > until:
            raise FinalError(f"{missing} did not come")
        time.sleep(0.2)
    return "all came"


def save_slowly(replica: Replica) -> None:
    """Save for some seconds when it is preempted, and succeed after a restart if it could."""
    store = _lives(replica)
    if replica.restarts:
        if not store.exists("saved"):
            raise FinalError("it was ended before it had saved")
        return
    replica.notice.promise()
    print("trains", flush=True)
    while not replica.notice.given():
        time.sleep(0.1)
    time.sleep(replica.job.arguments["seconds"])
    store.put("saved", b"all")
    raise Preempted("saved")


def _lives(replica: Replica) -> Any:
    return open_store(f"{replica.job.prefix}/lives")


def count(replica: Replica) -> int:
    """Write numbered lines, some at once and some at intervals."""
    lines = int(replica.job.arguments.get("lines", 60))
    for number in range(lines):
        print(f"line {number}", flush=True)
        if number % 10 == 0:
            time.sleep(0.4)
    return lines


def fail(replica: Replica) -> None:
    raise FinalError("the label 7 is outside 0 to 3")


def crash(replica: Replica) -> None:
    raise ZeroDivisionError("a bug of the user's own")


def vanish(replica: Replica) -> None:
    """Exit without output, as a segmentation fault does. A container's first process ignores
    its own SIGKILL, so a signal's exit code replaces it."""
    os._exit(128 + signal.SIGSEGV)


def devour(replica: Replica) -> None:
    """Allocate memory until the kernel ends the process."""
    taken = []
    while True:
        taken.append(bytearray(os.urandom(1 << 20)) * 16)


def gather(replica: Replica) -> int:
    """End once as many jobs of this run as the argument says are running at the same time."""
    store = open_store(f"{replica.job.store}/gathered/{replica.job.run}")
    store.put(replica.job.task, b"here")
    until = time.monotonic() + DEADLINE
    while (there := len(list(store.list()))) < replica.job.arguments["crowd"]:
        if time.monotonic() > until:
            raise FinalError(f"only {there} came")
        time.sleep(0.5)
    return there


def shout(replica: Replica) -> None:
    """Write a line that is longer than any buffer of a reader, and some others."""
    print("before", flush=True)
    print("x" * int(replica.job.arguments["letters"]), flush=True)
    print("after", flush=True)
