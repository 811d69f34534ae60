"""Steps without Airflow: in this process, or as processes of this machine without restarts."""

import importlib
import multiprocessing
import os
import signal
import socket
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping
from concurrent.futures import ProcessPoolExecutor
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Any

from aerotrain.contract.environment import replica_environment
from aerotrain.contract.errors import ExitCode, TemporaryError
from aerotrain.contract.job import Job, ReplicaName, Role
from aerotrain.contract.status import State, job_state
from aerotrain.replica import Replica
from aerotrain.supervisor.processes import end_with, umask, wait_until
from aerotrain.supervisor.protocol import LOG, Start, ask, observation_of, socket_of
from aerotrain.supervisor.supervisor import supervise

#: The id of a replica group that no task try has launched.
ATTEMPT = "by-hand"

CHIEF = ReplicaName(Role.CHIEF, 0)

#: Seconds between two checks of the replicas, and until the supervisor answers.
_CHECK_EVERY, _ANSWER = 0.2, 10.0


def run_step(step: str, store: str, scratch: Path, *, run: str = "run", **arguments: Any) -> Any:
    """Run the module ``aerotrain.STEP`` in this process, with an empty folder in ``scratch``.

    Returns:
        The step's result.
    """
    job = Job(
        name=ATTEMPT,
        module=f"aerotrain.{step}",
        store=store,
        run=run,
        task=step.rpartition(".")[2],
        arguments=arguments,
    )
    scratch.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=scratch) as folder:
        replica = Replica(job=job, name=CHIEF, attempt=ATTEMPT, scratch=Path(folder))
        return importlib.import_module(job.module).run(replica)


def prepare(
    store: str,
    scratch: Path,
    source: str | Mapping[str, Any],
    *,
    run: str = "run",
    processes: int = 1,
    **arguments: Any,
) -> str:
    """Plan a data set, write its partitions and finalize it.

    ``source`` is the ``source`` of ``PlanArguments``, whose other fields are ``arguments``, or the
    name of a user's module. Several ``processes`` write partitions at the same time.

    Returns:
        The URL of the data set.
    """
    if isinstance(source, str):
        source = {"kind": "python", "module": source}
    step = partial(run_step, store=store, scratch=scratch, run=run)
    planned = step("data.prepare.plan", source=source, **arguments)
    if processes == 1:
        for each in planned["partitions"]:
            step("data.prepare.partition", **each)
    else:
        spawned = multiprocessing.get_context("spawn")  # a fork would copy the threads' locks
        with ProcessPoolExecutor(processes, mp_context=spawned) as pool:
            written = [
                pool.submit(step, "data.prepare.partition", **e) for e in planned["partitions"]
            ]
            for each in written:
                each.result()
    url: str = step("data.prepare.finalize", dataset=planned["dataset"])
    return url


def run_replicas(job: Job, folder: Path, environment: Mapping[str, str]) -> ExitCode:
    """Run the replicas of ``job`` in ``folder`` to the end of the job, and print their logs.

    Returns:
        The exit code that a single replica would have.

    Raises:
        TemporaryError: their supervisor did not start, or ended.
    """
    addresses = free_addresses(job)
    starts = [
        Start(
            name=str(name),
            restarts=0,
            command=[sys.executable, "-m", "aerotrain.replica"],
            environment={
                **environment,
                **replica_environment(job, name, addresses, attempt=ATTEMPT),
            },
            umask=umask(),
            warm=False,
        )
        for name in job.names()
    ]
    logs = _Logs(job, folder)
    with _supervised(folder) as requests:
        request = {"do": "start", "replicas": [asdict(each) for each in starts]}
        records = ask(requests, request, seconds=_ANSWER)["replicas"]
        while True:
            seen = {name: observation_of(records.get(str(name))) for name in job.names()}
            if (state := job_state(seen)).ended:
                break
            time.sleep(_CHECK_EVERY)
            logs.print_new()
            records = ask(requests, {"do": "observe"}, seconds=_ANSWER)["replicas"]
    logs.print_new()
    if state is State.SUCCEEDED:
        return ExitCode.OK
    ended = (name for name, each in seen.items() if each.state is state)
    print("error: " + "; ".join(f"{name} {seen[name].reason}" for name in ended), flush=True)
    return ExitCode.FINAL if state is State.FAILED else ExitCode.TEMPORARY


def free_addresses(job: Job) -> dict[ReplicaName, str]:
    """An address of this machine for each replica, at a port that is free now."""
    with ExitStack() as stack:
        held = {name: stack.enter_context(socket.socket()) for name in job.names()}
        for each in held.values():
            each.bind(("127.0.0.1", 0))
        return {name: f"127.0.0.1:{each.getsockname()[1]}" for name, each in held.items()}


@contextmanager
def _supervised(folder: Path) -> Iterator[Path]:
    """The socket of a supervisor in ``folder``, which ends its replicas when this scope ends."""
    parent = os.getpid()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(ExitCode.TERMINATED))
    if os.fork() == 0:
        os.setsid()
        end_with(parent, signal.SIGTERM)
        supervise(folder)
    requests = socket_of(folder)

    def answers() -> bool:
        with suppress(OSError):
            return bool(ask(requests, {"do": "observe"}, seconds=_ANSWER))
        return False

    try:
        if not wait_until(answers, _ANSWER):
            raise TemporaryError(f"the supervisor of {folder} did not start within {_ANSWER:g} s")
        yield requests
    except OSError as error:
        raise TemporaryError(
            f"the replicas could not be supervised: {error}; start the command again"
        ) from error
    finally:
        with suppress(OSError):
            ask(requests, {"do": "end"}, seconds=_ANSWER)


class _Logs:
    """Prints the new lines of all replicas."""

    def __init__(self, job: Job, folder: Path) -> None:
        self._paths = {str(name): folder / str(name) / LOG for name in job.names()}
        self._read = dict.fromkeys(self._paths, 0)

    def print_new(self) -> None:
        for name, path in self._paths.items():
            with path.open("rb") as file:
                file.seek(self._read[name])
                text = file.read()
            text = text[: text.rfind(b"\n") + 1]
            self._read[name] += len(text)
            for line in text.decode(errors="replace").splitlines():
                print(f"[{name}] {line}", flush=True)
