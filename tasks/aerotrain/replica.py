"""How a replica comes to life, and how it ends: ``python -m aerotrain.replica``.

The work runs in a thread of its own, so that the main thread can always answer a signal:
Python runs no handler while its main thread sits in C++, and TensorFlow sits there for
minutes. The replica's working directory is its scratch folder.
"""

import errno
import importlib
import os
import signal
import sys
import threading
import traceback
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import FrameType
from typing import Any

from aerotrain.code_archive import fetch_code
from aerotrain.contract.cluster import replica_of, tell_tensorflow
from aerotrain.contract.errors import AerotrainError, ExitCode, TemporaryError
from aerotrain.contract.job import Job, ReplicaName, Role
from aerotrain.contract.status import Result
from aerotrain.store import open_store

#: Where Kubernetes reads the last words of a container that failed; a launcher of
#: processes names a file of its own.
TERMINATION_LOG = "/dev/termination-log"


@dataclass(frozen=True, kw_only=True)
class Replica:
    """One replica at work: the job, which of its replicas this is, and its scratch folder."""

    job: Job
    name: ReplicaName
    attempt: str
    scratch: Path

    @property
    def is_chief(self) -> bool:
        return self.name.role is Role.CHIEF

    @classmethod
    def from_environment(cls, environment: Mapping[str, str], scratch: Path) -> "Replica":
        """The replica that a launcher's variables describe."""
        return cls(
            job=Job.from_json(environment["AEROTRAIN_JOB"]),
            name=replica_of(environment),
            attempt=environment["AEROTRAIN_ATTEMPT"],
            scratch=scratch,
        )


Run = Callable[[Replica], Any]


def live(replica: Replica, run: Run | None = None) -> ExitCode:
    """Run the replica's module to its end, and say how it ended.

    ``run`` stands for the ``run`` of the job's module, where the caller has it already.
    """
    signal.signal(signal.SIGTERM, _leave)
    ended: list[ExitCode] = []
    work = threading.Thread(target=lambda: ended.append(_work(replica, run)), daemon=True)
    work.start()
    work.join()
    return ended[0] if ended else ExitCode.FINAL


def _work(replica: Replica, run: Run | None) -> ExitCode:
    try:
        if replica.job.code:
            sys.path.insert(0, _code_folder(replica.job.code, replica.scratch))
        run = run or importlib.import_module(replica.job.module).run
        value = run(replica)
        if replica.is_chief:
            result = Result(attempt=replica.attempt, value=value)
            store = open_store(replica.job.prefix)
            store.put("result.json", result.to_json().encode())
    except BaseException as error:  # noqa: BLE001 -- whatever ended it, the exit code must tell
        return _explain(error)
    return ExitCode.OK


def _code_folder(code: str, scratch: Path) -> str:
    """Where the user's modules lie, unpacked where they come as an archive in the store."""
    return str(fetch_code(code, scratch / "code")) if "://" in code else code


def _explain(error: BaseException) -> ExitCode:
    """Say what went wrong, to the log and to whoever started this replica."""
    code = ExitCode.TEMPORARY if isinstance(error, TemporaryError) else ExitCode.FINAL
    if isinstance(error, AerotrainError):
        message = str(error)
    elif isinstance(error, OSError) and error.errno == errno.ENOSPC:
        code = ExitCode.TEMPORARY
        message = f"the disk that holds {Path.cwd()} is full; free some of it, or use another"
    else:
        traceback.print_exception(error)
        message = f"{type(error).__name__}: {error}"
    print(f"error: {message}", flush=True)
    try:
        path = os.environ.get("AEROTRAIN_TERMINATION_LOG", TERMINATION_LOG)
        Path(path).write_text(message[:4000])
    except OSError:
        pass  # nobody to tell: started by hand, and the log has it
    return code


def _leave(_signal: int, _frame: FrameType | None) -> None:
    """End at once: TensorFlow's threads would keep a normal exit waiting."""
    print("told to go (SIGTERM)", flush=True)
    os._exit(ExitCode.TERMINATED)


def main() -> None:
    """Run the replica that the environment describes, and exit as it ended."""
    # A disk that came empty has no folder for temporary files yet.
    Path(os.environ.get("TMPDIR", ".")).mkdir(parents=True, exist_ok=True)
    tell_tensorflow(os.environ)
    code = live(Replica.from_environment(os.environ, Path.cwd()))
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)


if __name__ == "__main__":
    main()
