"""How a replica comes to life, and how it ends: ``python -m aerotrain.replica``.

The work runs in a thread of its own, so that the main thread can always answer a signal:
Python runs no handler while its main thread sits in C++, and TensorFlow sits there for
minutes. The replica's working directory is its scratch folder. The main thread also touches
a file as long as it lives, so that a process that is stopped can be told from one at work.
"""

import importlib
import io
import os
import signal
import socket
import sys
import threading
import time
import traceback
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

from aerotrain.code_archive import fetch_code
from aerotrain.contract.cluster import replica_of, set_tf_config
from aerotrain.contract.errors import (
    AerotrainError,
    ExitCode,
    SupersededError,
    TemporaryError,
)
from aerotrain.contract.job import Job, ReplicaName, Role
from aerotrain.contract.status import Result
from aerotrain.contract.termination import TerminationMessage
from aerotrain.lease import Lease
from aerotrain.preemption import GRACE, Preempted, PreemptionNotice
from aerotrain.store import open_store
from aerotrain.store.errors import FULL

#: Where Kubernetes reads the last words of a container that failed; a launcher of
#: processes names a file of its own.
TERMINATION_LOG = "/dev/termination-log"

#: What a replica touches in its scratch folder, unless AEROTRAIN_HEARTBEAT names a file.
HEARTBEAT = "heartbeat"
_SECONDS_BETWEEN_BEATS = 2.0

_began = time.time()


def began() -> float:
    """When this process began to be a replica, as near as Python can say, by ``time.time()``."""
    return _began


def begin() -> None:
    """Have it begin now: it was forked from one that has imported all this before."""
    global _began
    _began = time.time()


@dataclass(frozen=True, kw_only=True)
class Replica:
    """One replica at work: the job, which of its replicas this is, and its scratch folder.

    ``generation`` counts how often it came back in its set. ``notice`` is where its work finds
    that it is preempted, and ``heartbeat`` the file by which others see that it is alive.
    """

    job: Job
    name: ReplicaName
    attempt: str
    scratch: Path
    generation: int = 0
    notice: PreemptionNotice = field(default_factory=PreemptionNotice, compare=False)
    heartbeat: Path | None = None

    @property
    def is_chief(self) -> bool:
        return self.name.role is Role.CHIEF

    @cached_property
    def lease(self) -> Lease:
        """That of the job's place in the store, which the work takes if it is one chief's alone.

        It is held until the result is in the store.
        """
        return Lease(
            open_store(self.job.prefix),
            attempt=self.attempt,
            generation=self.generation,
            place=socket.gethostname(),
        )

    @classmethod
    def from_environment(cls, environment: Mapping[str, str], scratch: Path) -> "Replica":
        """The replica that a launcher's variables describe."""
        return cls(
            job=Job.from_json(environment["AEROTRAIN_JOB"]),
            name=replica_of(environment),
            attempt=environment["AEROTRAIN_ATTEMPT"],
            scratch=scratch,
            generation=int(environment.get("AEROTRAIN_GENERATION", "0")),
            notice=PreemptionNotice(float(environment.get("AEROTRAIN_GRACE", GRACE))),
            heartbeat=Path(environment.get("AEROTRAIN_HEARTBEAT", scratch / HEARTBEAT)),
        )


Run = Callable[[Replica], Any]


def live(replica: Replica, run: Run | None = None) -> ExitCode:
    """Run the replica's module to its end, and say how it ended.

    ``run`` stands for the ``run`` of the job's module, where the caller has it already.
    """

    def told(*_signal: object) -> None:
        print("preempted (SIGTERM)", flush=True)
        replica.notice.give()

    ended: list[ExitCode] = []
    work = threading.Thread(target=lambda: ended.append(_work(replica, run)), daemon=True)
    signal.signal(signal.SIGTERM, told)
    _beat(replica.heartbeat)
    work.start()
    while work.is_alive():
        work.join(_SECONDS_BETWEEN_BEATS)
        _beat(replica.heartbeat)
        # Again and again, for TensorFlow's coordination service takes the signal for itself.
        signal.signal(signal.SIGTERM, told)
    return ended[0] if ended else ExitCode.FINAL


def _beat(heartbeat: Path | None) -> None:
    if heartbeat is None:
        return
    with suppress(OSError):  # what fails for long is taken for a frozen replica, and is one
        heartbeat.touch()


def _work(replica: Replica, run: Run | None) -> ExitCode:
    code = ""
    try:
        if replica.job.code:
            code = _code_folder(replica.job.code, replica.scratch)
            sys.path.insert(0, code)
        run = run or importlib.import_module(replica.job.module).run
        _run(replica, run)
    except BaseException as error:  # noqa: BLE001 -- whatever ended it, the exit code must tell
        return _explain(error, code)
    return ExitCode.OK


def _run(replica: Replica, run: Run) -> None:
    """Run the work; the chief's result goes to the store before its lease is released."""
    if not replica.is_chief:
        run(replica)
        return
    try:
        result = Result(attempt=replica.attempt, value=run(replica))
        replica.lease.put("result.json", result.to_json().encode())
    finally:
        replica.lease.release()


def _code_folder(code: str, scratch: Path) -> str:
    """Where the user's modules lie, unpacked where they come as an archive in the store."""
    return str(fetch_code(code, scratch / "code")) if "://" in code else code


def _explain(error: BaseException, code_folder: str = "") -> ExitCode:
    """Say what went wrong, and which exit code tells it."""
    code = _code_of(error)
    if isinstance(error, Preempted):
        print(error, flush=True)
        return ExitCode.TERMINATED
    if isinstance(error, AerotrainError):
        message = str(error)
    elif isinstance(error, OSError) and error.errno in FULL:
        code = ExitCode.TEMPORARY
        message = f"the disk that holds {Path.cwd()} is full; free some of it, or use another"
    else:
        traceback.print_exception(error)
        message = f"{type(error).__name__}: {error}{_line_of(error, code_folder)}"
    write_termination_message(message)
    return code


def _code_of(error: BaseException) -> ExitCode:
    if isinstance(error, SupersededError):
        return ExitCode.SUPERSEDED
    return ExitCode.TEMPORARY if isinstance(error, TemporaryError) else ExitCode.FINAL


def _line_of(error: BaseException, folder: str) -> str:
    """Which line of the user's own modules in ``folder`` it came through last, to be appended."""
    if not folder:
        return ""
    top = Path(folder).resolve()
    for frame in reversed(traceback.extract_tb(error.__traceback__)):
        path = Path(frame.filename).resolve()
        if path.is_relative_to(top):
            return f" (line {frame.lineno} of {path.relative_to(top)}, in {frame.name})"
    return ""


def write_termination_message(message: str, unresponsive: Iterable[str] = ()) -> None:
    """Say why this replica ends, and who gave it no answer, to the log and to what started it."""
    print(f"error: {message}", flush=True)
    said = TerminationMessage(reason=message, unresponsive=frozenset(unresponsive))
    try:
        path = os.environ.get("AEROTRAIN_TERMINATION_LOG", TERMINATION_LOG)
        Path(path).write_text(said.to_text())
    except OSError:
        pass  # nobody to tell: started by hand, and the log has it


class _Said(io.FileIO):
    """Where this process prints: what a full disk does not take is lost, and nothing else is."""

    def write(self, data: Any) -> int:
        try:
            return super().write(data) or 0
        except OSError:
            return len(data)


def ignore_full_disk() -> None:
    """Have nothing that is printed raise an error: the log may lie on the disk that is full."""
    sys.stdout, sys.stderr = (
        io.TextIOWrapper(
            _Said(stream.fileno(), "w", closefd=False),
            encoding="utf-8",
            errors="backslashreplace",
            write_through=True,
        )
        for stream in (sys.stdout, sys.stderr)
    )


def main() -> None:
    """Run the replica that the environment describes, and exit as it ended."""
    ignore_full_disk()
    # A disk that came empty has no folder for temporary files yet.
    Path(os.environ.get("TMPDIR", ".")).mkdir(parents=True, exist_ok=True)
    set_tf_config(os.environ)
    code = live(Replica.from_environment(os.environ, Path.cwd()))
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)


if __name__ == "__main__":
    main()
