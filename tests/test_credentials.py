"""How local replicas get a credential of the store that outlives a session token."""

import json
import shutil
import subprocess
import sys
import threading
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from itertools import count
from pathlib import Path
from typing import Any

import pytest

from aerotrain_airflow.operators import credentials
from aerotrain_airflow.operators.credentials import replica_base_environment
from aerotrain_airflow.settings import Settings

pytestmark = pytest.mark.process

#: boto3 refreshes a credential at each use of it, if less than 10 minutes remain.
REMAINING = timedelta(minutes=2)

#: So long is an assumed role valid.
ASSUMED_FOR = timedelta(seconds=6)

ASSUMED = """<AssumeRoleResponse xmlns="https://sts.amazonaws.com/doc/2011-06-15/">
<AssumeRoleResult><Credentials><AccessKeyId>key</AccessKeyId><SecretAccessKey>secret
</SecretAccessKey><SessionToken>assumed {}</SessionToken><Expiration>{}</Expiration></Credentials>
</AssumeRoleResult></AssumeRoleResponse>"""


@pytest.fixture
def service() -> Iterator[str]:
    """Gives a new credential at each request: AssumeRole of STS, and that of a container."""
    numbers = count()

    class Answer(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            self.rfile.read(int(self.headers["Content-Length"]))
            ends = datetime.now(UTC) + ASSUMED_FOR
            self._send(ASSUMED.format(next(numbers), ends.isoformat()))

        def do_GET(self) -> None:
            token = f"token {next(numbers)}"
            keys = {"AccessKeyId": "key", "SecretAccessKey": "secret", "Token": token}
            ends = (datetime.now(UTC) + REMAINING).isoformat()
            self._send(json.dumps({**keys, "Expiration": ends}))

        def _send(self, text: str) -> None:
            self.send_response(200)
            self.end_headers()
            self.wfile.write(text.encode())

        def log_message(self, *_: object) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Answer) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()


@pytest.fixture
def connect(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[pytest.MonkeyPatch]:
    monkeypatch.setenv("AIRFLOW__AEROTRAIN__STORE", "s3://bucket/prefix")
    monkeypatch.setenv("AIRFLOW__AEROTRAIN__SCRATCH", str(tmp_path))
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_SESSION_TOKEN", "AWS_PROFILE"):
        monkeypatch.delenv(name, raising=False)
    yield monkeypatch
    shutil.rmtree(tmp_path)


def connection(**extra: object) -> str:
    return json.dumps({"conn_type": "aws", "extra": {"region_name": "eu-west-1", **extra}})


@pytest.mark.parametrize("kind", ["profile", "container"])
def test_replicas_refresh_what_boto3_can_refresh(
    connect: pytest.MonkeyPatch, service: str, tmp_path: Path, kind: str
) -> None:
    if kind == "profile":
        script = tmp_path / "credential.py"
        script.write_text(
            "import json, urllib.request\n"
            f"found = json.load(urllib.request.urlopen({service!r}))\n"
            "print(json.dumps({**found, 'Version': 1, 'SessionToken': found['Token']}))\n"
        )
        config = tmp_path / "config"
        config.write_text(f"[profile team]\ncredential_process = {sys.executable} {script}\n")
        connect.setenv("AWS_CONFIG_FILE", str(config))
        connect.setenv("AIRFLOW_CONN_STORE", connection(profile_name="team"))
    else:
        connect.setenv("AWS_CONTAINER_CREDENTIALS_FULL_URI", service)
        connect.setenv("AIRFLOW_CONN_STORE", connection())
    environment = replica_base_environment(Settings.read())
    assert not environment.keys() & {"AWS_SECRET_ACCESS_KEY", "AWS_SESSION_TOKEN"}
    program = (
        "import boto3; found = boto3.session.Session().get_credentials()\n"
        "print(*(found.get_frozen_credentials().token for _ in 'ab'), sep=',')"
    )
    used = subprocess.check_output([sys.executable, "-c", program], env=environment, text=True)
    first, second = used.strip().split(",")
    assert first.startswith("token ")
    assert first != second


KEYS = {"aws_access_key_id": "key", "aws_secret_access_key": "secret"}

#: Prints the tokens that a replica uses until there were three, each of which had not ended.
USES = """
import time, boto3
credentials, seen = boto3.session.Session().get_credentials(), []
until = time.monotonic() + 60
while len(seen) < 3 and time.monotonic() < until:
    token = credentials.get_frozen_credentials().token  # raises if it has ended
    if token not in seen:
        seen.append(token)
        print(token, flush=True)
    time.sleep(0.1)
"""


def role(service: str) -> dict[str, Any]:
    sts = {"sts": {"endpoint_url": service}}
    return {"role_arn": "arn:aws:iam::123456789012:role/team", "service_config": sts}


def test_replicas_outlive_the_tokens_of_a_role_in_the_connection(
    connect: pytest.MonkeyPatch, service: str
) -> None:
    connect.setenv("AIRFLOW_CONN_STORE", connection(**KEYS, **role(service)))
    environment = replica_base_environment(Settings.read())
    assert not environment.keys() & {"AWS_SECRET_ACCESS_KEY", "AWS_SESSION_TOKEN"}
    used = subprocess.check_output([sys.executable, "-c", USES], env=environment, text=True)
    assert len(set(used.splitlines())) == 3
    # The task that adopts them in another process writes the same file.
    program = (
        "from aerotrain_airflow.operators.job import *\n"
        "print(replica_base_environment(Settings.read())['AWS_SHARED_CREDENTIALS_FILE'])"
    )
    there = subprocess.check_output([sys.executable, "-c", program], text=True)
    assert there.splitlines()[-1] == environment["AWS_SHARED_CREDENTIALS_FILE"]


def test_a_token_in_the_connection_is_read_again_and_keys_without_a_token_are_passed(
    connect: pytest.MonkeyPatch,
) -> None:
    connect.setattr(credentials, "UNKNOWN", 3.0)
    connect.setenv("AIRFLOW_CONN_STORE", connection(**KEYS, aws_session_token="first"))
    environment = replica_base_environment(Settings.read())
    program = [sys.executable, "-c", USES]
    with subprocess.Popen(program, env=environment, text=True, stdout=subprocess.PIPE) as replica:
        assert replica.stdout is not None
        for token, following in (("first", "second"), ("second", "third"), ("third", "fourth")):
            assert replica.stdout.readline().strip() == token
            connect.setenv("AIRFLOW_CONN_STORE", connection(**KEYS, aws_session_token=following))
    connect.setenv("AIRFLOW_CONN_STORE", connection(**KEYS))
    assert replica_base_environment(Settings.read())["AWS_SECRET_ACCESS_KEY"] == "secret"
