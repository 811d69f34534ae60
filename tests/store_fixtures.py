"""Fixtures of stores: a folder, and a bucket of a real S3 server."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from aerotrain.contract.names import path_segment
from aerotrain_airflow.local.s3_server import S3Server, s3_server

BUCKET = "tests"


@pytest.fixture(scope="session")
def s3(tmp_path_factory: pytest.TempPathFactory) -> Iterator[S3Server]:
    """A SeaweedFS of this test session, with the bucket ``tests``."""
    with s3_server(tmp_path_factory.mktemp("s3")) as server:
        server.make_bucket(BUCKET)
        yield server


@pytest.fixture
def s3_url(s3: S3Server, request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """An empty prefix of this test's own, reached by this process's environment."""
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
