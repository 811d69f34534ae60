"""The replicas of a job as processes of this machine, which recover as they do under Airflow."""

import signal
import sys
import time
from collections.abc import Mapping
from pathlib import Path

from aerotrain.contract.errors import ExitCode
from aerotrain.contract.job import Job
from aerotrain.contract.replicas import Role
from aerotrain.contract.status import State
from aerotrain.launch.backend import LogLine
from aerotrain.launch.launcher import Launcher
from aerotrain.launch.process.backend import ProcessBackend, ProcessPlan
from aerotrain.replica import GRACE
from aerotrain.standalone.steps import ATTEMPT
from aerotrain.supervisor.fork_rules import may_fork

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
    launcher = Launcher(backend, say=_print)
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
