"""The replicas of a job as processes of this machine, without restarts except of data workers."""

import os
import signal
import sys
import time
from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Any

from aerotrain.contract.environment import replica_environment
from aerotrain.contract.errors import ExitCode, TemporaryError
from aerotrain.contract.job import Job
from aerotrain.contract.replicas import ReplicaName, Role
from aerotrain.contract.status import Observation, State, job_state
from aerotrain.replica import GRACE
from aerotrain.standalone.steps import ATTEMPT
from aerotrain.supervisor.fork_rules import may_fork
from aerotrain.supervisor.loopback import OPEN_SERVERS
from aerotrain.supervisor.ports import reserved_ports
from aerotrain.supervisor.preloading import preload
from aerotrain.supervisor.processes import (
    end_with,
    is_alive,
    reset_signals,
    send,
    umask,
    wait_until,
)
from aerotrain.supervisor.protocol import LOG, Start, ask, observation_of, socket_of
from aerotrain.supervisor.supervisor import supervise

#: Seconds between two checks of the replicas, and until the supervisor answers.
_CHECK_EVERY, _ANSWER = 0.2, 10.0

#: Seconds for a supervisor's imports, on a busy machine.
_IMPORT_SECONDS = 180.0


def run_replicas(job: Job, folder: Path, environment: Mapping[str, str]) -> int:
    """Run the replicas of ``job`` in ``folder`` to the end of the job, and print their logs.

    SIGTERM preempts them: they have ``GRACE`` seconds to save.

    Returns:
        The exit code of the replica whose end was that of the job: the chief, or one that failed.

    A data worker that is lost is restarted, because training goes on without it.

    Raises:
        TemporaryError: their supervisor did not start, or ended; or there are no free ports.
    """
    logs = _Logs(job, folder)
    preemption = _Preemption(job)
    warm = any(may_fork(job, name, environment) for name in job.names())
    with (
        reserved_addresses(job) as addresses,
        _supervised(folder, preemption, warm=warm) as requests,
    ):
        start = partial(_start, job, addresses, environment)
        request = start(dict.fromkeys(job.names(), 0))
        why_open = _ask(requests, {"do": "observe"})["open"]
        if why_open:
            print(f"warning: {OPEN_SERVERS % why_open}", flush=True)
        while True:
            records = _ask(requests, request)["replicas"]
            seen = {name: observation_of(records.get(str(name))) for name in job.names()}
            logs.print_new()
            restarts: Mapping[ReplicaName, int] = {}
            if preemption.at is None:
                restarts = _restarts_of(job, seen)
                is_over = _state_of(seen, restarts).ended
            else:  # a worker may end before the chief, which still saves
                is_over = preemption.is_over(records, seen)
            if is_over:
                break
            time.sleep(_CHECK_EVERY)
            request = start(restarts) if restarts else {"do": "observe"}
    logs.print_new(final=True)
    return _exit_code_of(seen, preempted=preemption.at is not None)


def _start(
    job: Job,
    addresses: Mapping[ReplicaName, str],
    environment: Mapping[str, str],
    restarts: Mapping[ReplicaName, int],
) -> Mapping[str, Any]:
    """The request to start these replicas, with their restart counts."""
    replicas = [
        Start(
            name=str(name),
            restarts=count,
            command=[sys.executable, "-m", "aerotrain.replica"],
            environment={
                **environment,
                **replica_environment(job, name, addresses, ATTEMPT, count),
            },
            umask=umask(),
            warm=may_fork(job, name, environment),
        )
        for name, count in restarts.items()
    ]
    return {"do": "start", "replicas": [asdict(each) for each in replicas]}


def _restarts_of(job: Job, seen: Mapping[ReplicaName, Observation]) -> dict[ReplicaName, int]:
    """The data workers to restart now, with their restart counts; print why."""
    restarts = {}
    for name, each in seen.items():
        count = (each.restarts or 0) + 1
        lost = name.role is Role.INPUT and each.state is State.LOST
        if lost and count <= job.restarts.crashes:
            print(f"{name} {each.reason}; it is restarted", flush=True)
            restarts[name] = count
    return restarts


def _state_of(
    seen: Mapping[ReplicaName, Observation], without: Collection[ReplicaName] = ()
) -> State:
    """The state of the job; without its evaluator, training continues, as ``without`` some."""
    return job_state(
        {
            name: each
            for name, each in seen.items()
            if name.role is not Role.EVALUATOR and name not in without
        }
    )


def _exit_code_of(seen: Mapping[ReplicaName, Observation], *, preempted: bool) -> int:
    """The exit code of an ended job; print which replicas failed, unless they were preempted."""
    state = _state_of(seen)
    if state is State.SUCCEEDED:
        return ExitCode.OK
    if preempted:
        return ExitCode.TERMINATED
    ended = [name for name, each in seen.items() if each.state is state]
    print("error: " + "; ".join(f"{name} {seen[name].reason}" for name in ended), flush=True)
    code = seen[ended[0]].exit_code
    return ExitCode.TEMPORARY if code is None else code


class _Preemption:
    """Preempts the replicas that train when this process receives SIGTERM.

    The others, such as ps, exit at once at SIGTERM, and a chief cannot save without them. At a
    second signal this process exits.
    """

    def __init__(self, job: Job) -> None:
        roles = (Role.CHIEF,) if job.rules.ps else (Role.CHIEF, Role.WORKER)
        self._training = [name for name in job.names() if name.role in roles]
        self._sent = False
        self.at: float | None = None
        signal.signal(signal.SIGTERM, self._give)

    def _give(self, *_: object) -> None:
        if self.at is not None:
            sys.exit(ExitCode.TERMINATED)
        self.at = time.monotonic()

    def is_over(self, records: Mapping[str, Any], seen: Mapping[ReplicaName, Observation]) -> bool:
        """Pass the preemption on; return whether all that train have ended, or are late."""
        running = [name for name in self._training if seen[name].state is State.RUNNING]
        if not self._sent:
            self._sent = True
            send([records[str(name)]["pid"] for name in running], signal.SIGTERM)
        return not running or time.monotonic() > (self.at or 0.0) + GRACE


@contextmanager
def reserved_addresses(job: Job) -> Iterator[dict[ReplicaName, str]]:
    """An address of this machine for each replica, at a port that stays reserved in this scope.

    Raises:
        TemporaryError: there are not enough free ports.
    """
    names = list(job.names())
    with reserved_ports(len(names)) as ports:
        yield {name: f"127.0.0.1:{port.number}" for name, port in zip(names, ports, strict=True)}


@contextmanager
def _supervised(folder: Path, preemption: _Preemption, *, warm: bool) -> Iterator[Path]:
    """The socket of a supervisor in ``folder``, which ends its replicas when this scope ends.

    A ``warm`` one imports what its replicas need, and forks them.
    """
    parent, supervisor = os.getpid(), os.fork()
    if supervisor == 0:
        try:
            os.setsid()
            reset_signals()
            end_with(parent, signal.SIGTERM)
            supervise(folder, preload if warm else None)
        finally:
            os._exit(1)
    requests, start_seconds = socket_of(folder), _IMPORT_SECONDS if warm else _ANSWER

    def is_started() -> bool:
        if preemption.at is not None:  # before any replica runs
            sys.exit(ExitCode.TERMINATED)
        with suppress(OSError):
            return bool(ask(requests, {"do": "observe"}, seconds=_ANSWER))
        if not is_alive(supervisor):
            raise TemporaryError(f"the supervisor of {folder} ended while it started")
        return False

    try:
        if not wait_until(is_started, start_seconds):
            raise TemporaryError(
                f"the supervisor of {folder} did not start within {start_seconds:g} s"
            )
        yield requests
    finally:
        with suppress(OSError):
            ask(requests, {"do": "end"}, seconds=_ANSWER)


def _ask(requests: Path, request: Mapping[str, Any]) -> Mapping[str, Any]:
    """The supervisor's answer to a request.

    Raises:
        TemporaryError: it has ended, or could not start a replica.
    """
    try:
        return ask(requests, request, seconds=_ANSWER)
    except OSError as error:
        raise TemporaryError(
            f"the supervisor of the replicas does not answer, it may have ended: {error}; the same "
            "command with the same --run continues at the last checkpoint"
        ) from error


class _Logs:
    """Prints the new lines of all replicas."""

    def __init__(self, job: Job, folder: Path) -> None:
        self._paths = {str(name): folder / str(name) / LOG for name in job.names()}
        self._read = dict.fromkeys(self._paths, 0)

    def print_new(self, *, final: bool = False) -> None:
        """Print what is new; a last line without an end only if the logs are ``final``."""
        for name, path in self._paths.items():
            with path.open("rb") as file:
                file.seek(self._read[name])
                text = file.read()
            if not final:
                text = text[: text.rfind(b"\n") + 1]
            self._read[name] += len(text)
            for line in text.decode(errors="replace").splitlines():
                print(f"[{name}] {line}", flush=True)
