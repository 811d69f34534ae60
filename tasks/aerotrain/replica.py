"""The process of one replica, from its start to its exit code: ``python -m aerotrain.replica``.

The work runs in its own thread, so that a signal is handled at any time: Python runs no handler
while its main thread is in C++, and TensorFlow may stay there for minutes. The replica's
working directory is its scratch folder. The main thread also touches a heartbeat file, which
distinguishes a running process from a stopped one.
"""

import gc
import importlib
import io
import os
import signal
import socket
import sys
import threading
import time
import traceback
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

from aerotrain.contract.environment import (
    Cluster,
    Variable,
    read_cluster,
    replica_of,
    set_tensorflow_variables,
    without_of,
)
from aerotrain.contract.errors import (
    ERROR_PREFIX,
    TERMINATION_LOG,
    AerotrainError,
    ExitCode,
    SupersededError,
    TemporaryError,
    TerminationMessage,
    is_unavailable,
    message_of,
)
from aerotrain.contract.job import Job
from aerotrain.contract.layout import RESULT
from aerotrain.contract.replicas import ReplicaName, Role
from aerotrain.contract.status import Result
from aerotrain.lease import Lease
from aerotrain.store import open_store
from aerotrain.store.errors import FULL
from aerotrain.training import set_environment
from aerotrain.user_code import fetch_code

#: The heartbeat file in the scratch folder, unless the launcher names another.
HEARTBEAT = "heartbeat"
_SECONDS_BETWEEN_BEATS = 2.0

#: Seconds that a replica may take to save, unless the launcher says otherwise. Pods are killed 10 s
#: after they were preempted, unless a template sets another grace period.
GRACE = 8.0

_began = time.time()


def began() -> float:
    """When this replica started, by ``time.time()``, as precisely as Python can determine."""
    return _began


def begin() -> None:
    """Restart the clock of ``began``: this process was forked from one with the imports."""
    global _began
    _began = time.time()


class Preempted(TemporaryError):  # noqa: N818 -- named after the event, not as an error
    """The work has stopped because the replica was preempted, and everything is saved."""


def exit_now() -> None:
    """End this process at once; a normal exit would wait for TensorFlow's threads."""
    os._exit(ExitCode.TERMINATED)


class PreemptionNotice:
    """The notice of a preemption, which the work checks between two executions.

    Until the work has called ``promise``, a preempted process exits at once.
    """

    def __init__(self, grace: float = GRACE, leave: Callable[[], None] = exit_now) -> None:
        self._grace = grace
        self._leave = leave
        self._given = threading.Event()
        self._promised = False

    def promise(self) -> None:
        """Declare that from now on the work checks the notice, saves, and ends by itself."""
        self._promised = True

    def give(self) -> None:
        """Preempt the work. Exit now if it has not promised to check, or at a second call."""
        if self._given.is_set() or not self._promised:
            self._leave()
            return
        self._given.set()
        last = threading.Timer(self._grace, self._leave)
        last.daemon = True
        last.start()

    def given(self) -> bool:
        """Whether the replica was preempted."""
        return self._given.is_set()

    @property
    def grace(self) -> float:
        """Seconds that remain to save after a preemption."""
        return self._grace


@dataclass(frozen=True, kw_only=True)
class Replica:
    """A running replica: the job, its name in the job, and its scratch folder.

    ``cluster`` has the addresses of all replicas, also of the workers ``without``, which take no
    part. ``restarts`` is its restart count in the replica
    group. The work reads from ``notice`` whether the replica was preempted. ``heartbeat`` is the
    file that shows others that it is alive, ``termination_log`` the one of its termination message;
    a replica that was started by hand has neither. ``node`` is the machine. ``has_server`` says
    whether a server of models runs in its pod.
    """

    job: Job
    name: ReplicaName
    attempt: str
    scratch: Path
    cluster: Cluster = field(default_factory=dict)
    without: frozenset[str] = frozenset()
    restarts: int = 0
    notice: PreemptionNotice = field(default_factory=PreemptionNotice, compare=False)
    heartbeat: Path | None = None
    termination_log: Path | None = None
    node: str = field(default_factory=socket.gethostname)
    has_server: bool = False

    @property
    def is_chief(self) -> bool:
        return self.name.role is Role.CHIEF

    @property
    def has_peers(self) -> bool:
        """Whether the job has other replicas, with which TensorFlow connects this one."""
        return sum(map(len, self.cluster.values())) > 1

    @cached_property
    def lease(self) -> Lease:
        """The lease of the job's prefix in the store. Work that requires a single chief takes it.

        It is held until the result is in the store.
        """
        return Lease(
            open_store(self.job.prefix),
            attempt=self.attempt,
            restarts=self.restarts,
            place=socket.gethostname(),
        )

    @classmethod
    def from_environment(cls, environment: Mapping[str, str], scratch: Path) -> "Replica":
        """Build the replica that a launcher's variables describe."""
        return cls(
            job=Job.from_json(environment[Variable.JOB]),
            name=replica_of(environment),
            attempt=environment[Variable.ATTEMPT],
            scratch=scratch,
            cluster=read_cluster(environment[Variable.CLUSTER]),
            without=without_of(environment),
            restarts=int(environment.get(Variable.RESTARTS, "0")),
            notice=PreemptionNotice(float(environment.get(Variable.GRACE, GRACE))),
            heartbeat=Path(environment.get(Variable.HEARTBEAT, scratch / HEARTBEAT)),
            termination_log=Path(environment.get(Variable.TERMINATION_LOG, TERMINATION_LOG)),
            node=environment.get(Variable.NODE) or socket.gethostname(),
            has_server=Variable.SERVER in environment,
        )

    def write_termination_message(self, message: str, unresponsive: Iterable[str] = ()) -> None:
        """Write why this replica ends, and who did not answer, to the log and the message file."""
        print("\n".join(ERROR_PREFIX + line for line in message.splitlines()), flush=True)
        if self.termination_log is not None:
            said = TerminationMessage(reason=message, unresponsive=frozenset(unresponsive))
            with suppress(OSError):  # it cannot be written: the log has the message
                self.termination_log.write_text(said.to_text())


Run = Callable[[Replica], Any]


def run_replica(replica: Replica, run: Run | None = None) -> ExitCode:
    """Run the replica's module to its end, and return the exit code.

    ``run`` replaces the ``run`` of the job's module, for a caller that has imported it already.
    """

    def preempt(*_signal: object) -> None:
        print("preempted (SIGTERM)", flush=True)
        replica.notice.give()

    ended: list[ExitCode] = []
    work = threading.Thread(target=lambda: ended.append(_work(replica, run)), daemon=True)
    signal.signal(signal.SIGTERM, preempt)
    if replica.has_peers:
        _wait_for(signal.SIGTERM, preempt)
    _beat(replica.heartbeat)
    work.start()
    while work.is_alive():
        work.join(_SECONDS_BETWEEN_BEATS)
        _beat(replica.heartbeat)
    return ended[0] if ended else ExitCode.FINAL


def _wait_for(number: signal.Signals, call: Callable[[], None]) -> None:
    """Call ``call`` at each such signal, whatever handler is installed later.

    TensorFlow's coordination service replaces the handler of SIGTERM, in a thread of its own, some
    time after its servers have started. All threads that are started after this block the signal,
    and so do processes that they start.
    """
    signal.pthread_sigmask(signal.SIG_BLOCK, {number})

    def wait() -> None:
        while True:
            signal.sigwait({number})
            call()

    threading.Thread(target=wait, name="signals", daemon=True).start()


def _beat(heartbeat: Path | None) -> None:
    if heartbeat is None:
        return
    with suppress(OSError):  # if this keeps failing, the replica counts as unresponsive
        heartbeat.touch()


#: The error that ends this process, kept until then. The destructors of what its frames hold may
#: wait for lost replicas, as the one of MultiWorkerMirroredStrategy does, for more than a second.
_kept: list[BaseException] = []


def _work(replica: Replica, run: Run | None) -> ExitCode:
    code = ""
    if str(replica.name) in replica.without:
        print("waits until the others take it into their cluster", flush=True)
        threading.Event().wait()  # it is ended, and started again then
    set_environment(
        os.environ
    )  # before a module of ours or of the user imports TensorFlow or Keras
    try:
        if replica.job.code:
            code = _code_folder(replica.job.code, replica.scratch)
            sys.path.insert(0, code)
        run = run or imported(replica.job.module)
        _run(replica, run)
    except BaseException as error:  # noqa: BLE001 -- any error must become an exit code
        _kept.append(error)
        return _explain(replica, error, code)
    return ExitCode.OK


def imported(module: str, function: str = "run") -> Run:
    """A function of a module."""
    if module not in sys.modules:
        gc.disable()  # what is imported is no garbage: searching it takes a fifth of the imports
        try:
            importlib.import_module(module)
        finally:
            gc.freeze()
            gc.enable()
    run: Run = getattr(sys.modules[module], function)
    return run


def _run(replica: Replica, run: Run) -> None:
    """Run the work. The chief's result is stored before its lease is released."""
    if not replica.is_chief:
        run(replica)
        return
    try:
        result = Result(attempt=replica.attempt, value=run(replica))
        replica.lease.put(RESULT, result.to_json().encode())
    finally:
        replica.lease.release()


def _code_folder(code: str, scratch: Path) -> str:
    """The folder of the user's modules; an archive is unpacked into ``scratch`` first."""
    return str(fetch_code(code, scratch / "code")) if "://" in code else code


def _explain(replica: Replica, error: BaseException, code_folder: str) -> ExitCode:
    """Report an error, and return the exit code for it."""
    code = exit_code_of(error)
    if isinstance(error, Preempted):
        print(error, flush=True)
        return ExitCode.TERMINATED
    if isinstance(error, AerotrainError):
        message = str(error)
    elif isinstance(error, OSError) and error.errno in FULL:
        code = ExitCode.TEMPORARY
        message = f"the disk that holds {replica.scratch} is full; free some of it, or use another"
    else:
        lines = _lines_of(error, code_folder)
        if lines:
            print("the lines of your modules that it came through, the last one last:")
            print("".join(traceback.format_list(lines)), end="", flush=True)
        else:
            traceback.print_exception(error)
        message = f"{type(error).__name__}: {message_of(error)}{_place(lines, code_folder)}"
    replica.write_termination_message(message)
    return code


def exit_code_of(error: BaseException) -> ExitCode:
    """The exit code by which a process reports that error."""
    if isinstance(error, SupersededError):
        return ExitCode.SUPERSEDED
    is_temporary = isinstance(error, TemporaryError) or is_unavailable(error)
    return ExitCode.TEMPORARY if is_temporary else ExitCode.FINAL


def _lines_of(error: BaseException, folder: str) -> list[traceback.FrameSummary]:
    """The lines of the user's modules that ``error`` came through, in the order of the calls."""
    if not folder:
        return []
    top = Path(folder).resolve()
    frames = traceback.extract_tb(error.__traceback__)
    return [each for each in frames if Path(each.filename).resolve().is_relative_to(top)]


def _place(lines: Sequence[traceback.FrameSummary], folder: str) -> str:
    """A suffix that names the last of these lines."""
    if not lines:
        return ""
    path = Path(lines[-1].filename).resolve().relative_to(Path(folder).resolve())
    return f" (line {lines[-1].lineno} of {path}, in {lines[-1].name})"


class _LossyStream(io.FileIO):
    """A standard stream that drops what a full disk does not accept, and raises no error."""

    def write(self, data: Any) -> int:
        try:
            return super().write(data) or 0
        except OSError:
            return len(data)


def ignore_full_disk() -> None:
    """Make printing raise no error on a full disk, which may hold the log.

    A line is one write with its end: the replica's own children write to the same log.
    """
    sys.stdout, sys.stderr = (
        io.TextIOWrapper(
            _LossyStream(stream.fileno(), "w", closefd=False),
            encoding="utf-8",
            errors="backslashreplace",
            line_buffering=True,
        )
        for stream in (sys.stdout, sys.stderr)
    )


def main() -> None:
    """Run the replica that the environment describes, and exit with its exit code."""
    ignore_full_disk()
    # A new, empty disk has no folder for temporary files yet.
    Path(os.environ.get("TMPDIR", ".")).mkdir(parents=True, exist_ok=True)
    set_tensorflow_variables(os.environ)
    code = run_replica(Replica.from_environment(os.environ, Path.cwd()))
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)


if __name__ == "__main__":
    # The classes of this module are compared with those that other modules import by its name.
    from aerotrain import replica

    replica.main()
