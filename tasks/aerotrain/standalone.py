"""Steps without Airflow: in this process, or as processes of this machine without restarts."""

import importlib
import multiprocessing
import os
import select
import shutil
import signal
import sys
import tempfile
import time
import uuid
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from concurrent.futures.process import BrokenProcessPool
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
from aerotrain.replica import GRACE, Replica, ignore_full_disk
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

#: The id of the replica group that this process launches. Random, so that of two commands with one
#: run name the lease lets only one train.
ATTEMPT = f"by-hand-{uuid.uuid4().hex}"

CHIEF = ReplicaName(Role.CHIEF, 0)

#: Seconds between two checks of the replicas, and until the supervisor answers.
_CHECK_EVERY, _ANSWER = 0.2, 10.0

#: Seconds for a supervisor's imports, on a busy machine.
_IMPORT_SECONDS = 180.0

#: Seconds in which a scratch folder must be removed, although killed processes may still write.
_REMOVAL = 60.0


def remove_at_exit(scratch: Path) -> None:
    """Remove ``scratch`` when this process has ended, even by ``os._exit`` or SIGKILL.

    A child process does it. The child keeps the standard streams open, so that who reads the output
    of this command to its end finds the folder removed. Call this before any thread starts.
    """
    command = os.pidfd_open(os.getpid())
    if os.fork():
        os.close(command)
        return
    try:
        os.setsid()
        signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())
        select.select([command], [], [])

        def is_gone() -> bool:
            shutil.rmtree(scratch, ignore_errors=True)
            return not scratch.exists()

        wait_until(is_gone, _REMOVAL)
    finally:
        os._exit(0)


def run_step(step: str, store: str, scratch: Path, *, run: str = "run", **arguments: Any) -> Any:
    """Run the module ``aerotrain.STEP`` in this process, with an empty folder in ``scratch``.

    Returns:
        The step's result.
    """
    job = Job(
        name="by-hand",
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
    return _by_partitions(step, "data.prepare", processes, source=source, **arguments)


def predict(
    store: str, scratch: Path, *, run: str = "run", processes: int = 1, **arguments: Any
) -> str:
    """Plan predictions, write their partitions and finalize them.

    ``arguments`` are the fields of ``PredictArguments``. Several ``processes`` write partitions at
    the same time.

    Returns:
        The URL of the predictions.
    """
    step = partial(run_step, store=store, scratch=scratch, run=run)
    return _by_partitions(step, "prediction", processes, **arguments)


def _by_partitions(step: Callable[..., Any], package: str, processes: int, **arguments: Any) -> str:
    """Run the steps ``plan``, ``partition`` and ``finalize`` of a package."""
    planned = step(f"{package}.plan", **arguments)
    partitions = planned.pop("partitions")
    write = partial(step, f"{package}.partition")
    if processes == 1:
        for each in partitions:
            write(**each)
    else:
        _write_partitions(write, partitions, processes)
    url: str = step(f"{package}.finalize", **planned)
    return url


def _write_partitions(
    write: Callable[..., Any], partitions: Sequence[Mapping[str, Any]], processes: int
) -> None:
    """Write partitions in several processes; after an error, those in progress are still written.

    Raises:
        TemporaryError: a process was killed.
    """
    pool = ProcessPoolExecutor(
        processes,
        mp_context=multiprocessing.get_context("spawn"),  # a fork would copy the threads' locks
        initializer=_begin_worker,
        initargs=(os.getpid(),),
    )
    try:
        for each in as_completed([pool.submit(write, **each) for each in partitions]):
            each.result()
    except BrokenProcessPool as error:
        raise TemporaryError(
            "a process that wrote partitions was killed, as Linux does when memory runs out; "
            "start the command again, with fewer processes"
        ) from error
    finally:
        pool.shutdown(cancel_futures=True)


def _begin_worker(parent: int) -> None:
    """Make this process of a pool end with ``parent``, which alone handles Ctrl-C."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    end_with(parent, signal.SIGKILL)
    ignore_full_disk()


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
