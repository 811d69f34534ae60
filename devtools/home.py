"""The folder of a local Airflow: its layout, its secrets, and the process that uses it."""

import base64
import fcntl
import json
import os
import secrets
import shutil
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from shlex import quote

from aerotrain.contract.errors import FinalError

USER = "admin"

#: The least free space of a home at its start. A new database takes 60 MiB.
_LEAST_SPACE = 200 * 2**20

#: The free space of a home below which its disk is full.
_FULL = 8 * 2**20


class Home:
    """Every path under one folder, by default ``.local`` of a clone."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.airflow = root / "airflow"  # AIRFLOW_HOME, with the logs of tasks
        self.config = self.airflow / "airflow.cfg"  # for the command `airflow`
        self.postgres = root / "postgres"  # the data of PostgreSQL, one folder per major version
        self.store = root / "store"  # the data of the S3 server
        self.scratch = root / "scratch"  # the working directories of replicas
        self.logs = root / "logs"  # of each Airflow component, and of `up`
        self.restarts = self.logs / "restarts.log"  # of components that ended after `up`
        self.model = root / "model"  # the SavedModel that the last `run` exported
        self.statistics = root / "statistics.html"  # of the data set of the last `run`
        self.tensorboard = root / "tensorboard"  # TensorBoard's event files, one folder per run
        self.s3 = root / "s3.env"  # how clients use the S3 server, as lines NAME=VALUE for a shell
        self.models = root / "models.url"  # the address of the server of models, while it runs
        self.passwords = root / "passwords.json"  # of Airflow's simple auth manager, by user
        self.secrets = root / "secrets.json"
        self.sessions = root / "sessions"  # the ids of the sessions of Airflow's components

    @property
    def option(self) -> str:
        """How a command of ``make`` names the home, unless it is that of the clone."""
        is_default = self.root.resolve() == Path.cwd().resolve() / ".local"
        return "" if is_default else f" HOME_DIR={quote(str(self.root))}"

    def make(self) -> None:
        """Make the folders, readable by this user only: the database holds Airflow's secrets.

        Raises:
            FinalError: they cannot be made here, or there is too little space.
        """
        self.check_owner()
        try:
            self.root.mkdir(mode=0o700, parents=True, exist_ok=True)
            for folder in (self.airflow, self.store, self.scratch, self.logs):
                folder.mkdir(exist_ok=True)
        except (FileExistsError, FileNotFoundError, NotADirectoryError, PermissionError) as error:
            raise FinalError(
                f"{self.root} cannot be the folder of a local Airflow: {error.strerror}, at "
                f"{error.filename}; name another one by HOME_DIR=FOLDER"
            ) from error
        free = shutil.disk_usage(self.root).free
        if free < _LEAST_SPACE:
            raise FinalError(
                f"{free // 2**20} MiB are free in {self.root}, and a local Airflow needs "
                f"{_LEAST_SPACE // 2**20} MiB; free some space, or name another folder by "
                "HOME_DIR=FOLDER"
            )

    def why_full(self) -> str:
        """Why nothing can be written here any more, and what to do; empty if there is room."""
        free = shutil.disk_usage(self.root).free
        if free >= _FULL:
            return ""
        return (
            f"the disk of {self.root} is full: {free / 2**20:.0f} MiB are free, so tasks fail with "
            f"an InternalError of the S3 server; free at least {_LEAST_SPACE // 2**20} MiB, and "
            "run them again. A component that hangs starts again by `make down` and `make up`"
        )

    def check_owner(self) -> None:
        """Check that this user made the home, as the files of two users exclude each other.

        Raises:
            FinalError: another user did.
        """
        with suppress(FileNotFoundError, NotADirectoryError, PermissionError):
            if (owner := self.secrets.stat().st_uid) != os.geteuid():
                raise FinalError(
                    f"the Airflow in {self.root} is that of the user with id {owner}; use it as "
                    "that user, or name another folder by HOME_DIR=FOLDER"
                )


@dataclass(frozen=True, kw_only=True)
class Secrets:
    """The secrets that Airflow's components share."""

    password: str
    jwt_secret: str
    fernet_key: str
    secret_key: str
    database_password: str

    @classmethod
    def of(cls, home: Home) -> "Secrets":
        """The secrets of this home, created by the first call and unchanged afterwards."""
        if not home.secrets.exists():
            made = cls(
                password=secrets.token_urlsafe(12),
                jwt_secret=secrets.token_hex(64),
                # 32 bytes in URL-safe base64: https://github.com/fernet/spec
                fernet_key=base64.urlsafe_b64encode(secrets.token_bytes(32)).decode(),
                secret_key=secrets.token_hex(32),
                database_password=secrets.token_hex(32),
            )
            write_private(home.secrets, json.dumps(asdict(made)))
        ours = cls(**json.loads(home.secrets.read_text()))
        write_private(home.passwords, json.dumps({USER: ours.password}))
        return ours


def write_private(path: Path, text: str) -> None:
    """Write a file that only this user can read."""
    partial = path.with_suffix(".new")
    partial.unlink(missing_ok=True)
    partial.touch(mode=0o600)
    partial.write_text(text)
    partial.replace(path)


@dataclass(frozen=True, kw_only=True)
class Holder:
    """The process that uses a home; ``url`` is the address of its Airflow, if users know it."""

    command: str
    pid: int
    url: str


@contextmanager
def held(home: Home, command: str, url: str = "") -> Iterator[None]:
    """Hold the home exclusively until the block ends.

    The kernel releases the lock when its process ends, in whatever way. So the content of the lock
    file is valid for as long as it is locked.

    Raises:
        FinalError: another process holds it.
    """
    with _lock_file(home).open("r+") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            raise FinalError(_in_use(home, lock.read())) from error
        lock.truncate()
        lock.write(json.dumps(asdict(Holder(command=command, pid=os.getpid(), url=url))))
        lock.flush()
        yield


def _in_use(home: Home, holder: str) -> str:
    if not holder:
        return f"another process is just starting in {home.root}; try again in a moment"
    other = Holder(**json.loads(holder))
    if other.command == "up":
        return f"Airflow is already running at {other.url}; `make down` stops it"
    return (
        f"another `make run` (process {other.pid}) is using {home.root}; wait for its end, "
        "or give this one a home of its own with HOME_DIR=FOLDER"
    )


def holder(home: Home) -> Holder | None:
    """The current holder of the home, or None."""
    if not home.root.is_dir():
        return None
    with _lock_file(home).open() as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except BlockingIOError:
            text = lock.read()
            return Holder(**json.loads(text)) if text else None
    return None


def _lock_file(home: Home) -> Path:
    path = home.root / "lock"
    path.touch(mode=0o600)
    return path
