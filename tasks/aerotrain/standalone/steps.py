"""Steps in this process, and the partitions of data in several."""

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
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from concurrent.futures.process import BrokenProcessPool
from functools import partial
from pathlib import Path
from typing import Any

from aerotrain.contract.errors import ExitCode, TemporaryError
from aerotrain.contract.job import Job
from aerotrain.contract.replicas import ReplicaName, Role
from aerotrain.contract.status import State
from aerotrain.launch.backend import LogLine
from aerotrain.launch.launcher import Launcher
from aerotrain.launch.process.backend import ProcessBackend, ProcessPlan
from aerotrain.replica import GRACE, Replica, ignore_full_disk
from aerotrain.store import open_store
from aerotrain.supervisor.fork_rules import may_fork
from aerotrain.supervisor.processes import end_with, wait_until

#: The id of the replica group that this process launches. Random, so that of two commands with one
#: run name the lease lets only one train.
ATTEMPT = f"by-hand-{uuid.uuid4().hex}"

CHIEF = ReplicaName(Role.CHIEF, 0)

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


#: Seconds between two checks of preempted replicas.
_CHECK_EVERY = 0.2


class _Terminated(BaseException):
    """This process has received SIGTERM."""


def run_replicas(job: Job, folder: Path, environment: Mapping[str, str]) -> int:
    """Run the replicas of ``job`` in ``folder`` to the end of the job, and print their logs.

    SIGTERM preempts them: they have ``GRACE`` seconds to save.

    Returns:
        The exit code: of a final error, of a temporary one, or of the preemption.

    Raises:
        FinalError, TemporaryError: the replicas could not be started.
    """
    warm = any(may_fork(job, name, environment) for name in job.names())
    backend = ProcessBackend(folder, environment, ATTEMPT, warm=warm)
    launcher = Launcher(backend, _print, lambda url: open_store(url, environment))
    plan = launcher.plan(job, ATTEMPT)
    try:
        signal.signal(signal.SIGTERM, _raise_terminated)
        launcher.start(plan)
        ended = launcher.watch(plan.handle, _print, until=None)
    except _Terminated:
        _preempt(launcher, backend, plan)
        return ExitCode.TERMINATED
    finally:
        launcher.stop(plan.handle)
    if ended is None or ended.state is State.SUCCEEDED:
        return ExitCode.OK
    print(f"error: {ended.reason}", flush=True)
    return ExitCode.FINAL if ended.state is State.FAILED else ExitCode.TEMPORARY


def _print(line: LogLine | str) -> None:
    if not (isinstance(line, LogLine) and line.is_noise):
        print(line, flush=True)


def _raise_terminated(*_: object) -> None:
    """At the first SIGTERM; a second one ends this process."""
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(ExitCode.TERMINATED))
    raise _Terminated


def _preempt(launcher: Launcher[ProcessPlan], backend: ProcessBackend, plan: ProcessPlan) -> None:
    """Preempt the replicas that train, and wait for their end for ``GRACE`` seconds.

    The others, such as ps, exit at once at SIGTERM, and a chief cannot save without them.
    """
    roles = (Role.CHIEF,) if plan.job.rules.ps else (Role.CHIEF, Role.WORKER)
    training = [name for name in plan.job.names() if name.role in roles]
    if not plan.folder.exists():  # none was started yet
        return
    backend.signal(plan.folder, training, signal.SIGTERM)
    until = time.monotonic() + GRACE
    while time.monotonic() < until:
        seen = launcher.observe(plan.handle, _print)
        if all(seen[name].state.ended for name in training):
            return
        time.sleep(_CHECK_EVERY)
