"""Fixtures of stores: a folder, and a bucket of a real S3 server."""

import json
import resource
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from aerotrain.contract.layout import path_segment
from devtools.s3_server import CREDENTIALS, S3Server, s3_server

BUCKET = "tests"

#: Credentials of a user who may read the objects of the bucket, but not list them.
READER = {"AWS_ACCESS_KEY_ID": "reader", "AWS_SECRET_ACCESS_KEY": "reads-and-lists-nothing"}


@pytest.fixture(scope="session")
def s3(tmp_path_factory: pytest.TempPathFactory) -> Iterator[S3Server]:
    """A SeaweedFS of this test session, with the bucket ``tests``."""
    folder = tmp_path_factory.mktemp("s3")
    (folder / CREDENTIALS).write_text(
        json.dumps(
            {
                "identities": [
                    _identity("aerotrain", "all-of-this-session", "Admin"),
                    _identity(*READER.values(), f"Read:{BUCKET}"),
                ]
            }
        )
    )
    with s3_server(folder) as server:
        server.make_bucket(BUCKET)
        yield server


def _identity(name: str, secret: str, action: str) -> dict[str, Any]:
    credentials = [{"accessKey": name, "secretKey": secret}]
    return {"name": name, "credentials": credentials, "actions": [action]}


@pytest.fixture
def s3_url(s3: S3Server, request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """An empty prefix of this test's own, for which this process has the credentials."""
    for name, value in s3.environment.items():
        monkeypatch.setenv(name, value)
    return f"s3://{BUCKET}/{path_segment(request.node.nodeid)}"


@pytest.fixture(params=["file", pytest.param("s3", marks=pytest.mark.process)])
def store_url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """The URL of an empty store, of each kind in turn."""
    if request.param == "file":
        return (tmp_path / "store").as_uri()
    url: str = request.getfixturevalue("s3_url")
    return url


@pytest.fixture
def small_files() -> Iterator[None]:
    """Limit the files of this process to 1 MiB: simulates a full disk without filling one."""
    with no_room(1 << 20):
        yield


@contextmanager
def no_room(most: int = 0) -> Iterator[None]:
    """Limit each file of this process to ``most`` bytes."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (most, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
