"""How local replicas get a credential of the store that outlives a session token."""

import json
import logging
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

from aerotrain_airflow.operators.credentials import replica_base_environment
from aerotrain_airflow.settings import Settings

pytestmark = pytest.mark.process

#: boto3 refreshes a credential at each use of it, if less than 10 minutes remain.
REMAINING = timedelta(minutes=2)

ASSUMED = """<AssumeRoleResponse xmlns="https://sts.amazonaws.com/doc/2011-06-15/">
<AssumeRoleResult><Credentials><AccessKeyId>key</AccessKeyId><SecretAccessKey>secret
</SecretAccessKey><SessionToken>assumed</SessionToken><Expiration>{}</Expiration></Credentials>
</AssumeRoleResult></AssumeRoleResponse>"""


@pytest.fixture
def service() -> Iterator[str]:
    """Gives a new credential at each request: AssumeRole of STS, and that of a container."""
    numbers = count()

    class Answer(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            self.rfile.read(int(self.headers["Content-Length"]))
            self._send(ASSUMED.format((datetime.now(UTC) + REMAINING).isoformat()))

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
def connect(monkeypatch: pytest.MonkeyPatch) -> pytest.MonkeyPatch:
    monkeypatch.setenv("AIRFLOW__AEROTRAIN__STORE", "s3://bucket/prefix")
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_SESSION_TOKEN", "AWS_PROFILE"):
        monkeypatch.delenv(name, raising=False)
    return monkeypatch


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


def test_a_session_token_that_replicas_cannot_refresh_is_said_at_the_start(
    connect: pytest.MonkeyPatch, service: str, caplog: pytest.LogCaptureFixture
) -> None:
    keys = {"aws_access_key_id": "key", "aws_secret_access_key": "secret"}
    role: dict[str, Any] = {
        "role_arn": "arn:aws:iam::123456789012:role/team",
        "service_config": {"sts": {"endpoint_url": service}},
    }
    cases = [
        ({"aws_session_token": "token"}, "token", "at a time that it does not say"),
        (role, "assumed", f"at {datetime.now(UTC).year}-"),
        ({}, None, None),
    ]
    for extra, token, ends in cases:
        caplog.clear()
        connect.setenv("AIRFLOW_CONN_STORE", connection(**keys, **extra))
        with caplog.at_level(logging.WARNING, "aerotrain_airflow.operators.credentials"):
            environment = replica_base_environment(Settings.read())
        assert environment.get("AWS_SESSION_TOKEN") == token
        said = [each for each in caplog.messages if "replicas cannot refresh" in each]
        assert len(said) == (ends is not None)
        assert not ends or ends in said[0]
