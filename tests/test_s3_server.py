"""The S3 server that `make run` and these tests start: a real one with persistent data."""

from pathlib import Path

import pytest

from aerotrain.store import open_store
from devtools.s3_server import S3Server, s3_server


@pytest.mark.process
def test_a_server_keeps_its_objects_from_one_start_to_the_next(
    s3: S3Server, tmp_path: Path
) -> None:
    with s3_server(tmp_path) as first:
        first.make_bucket("kept")
        open_store("s3://kept", first.environment).put("x", b"x")
    assert first.process.returncode is not None
    with s3_server(tmp_path) as second:
        second.make_bucket("kept")
        assert second.secret_key == first.secret_key
        assert open_store("s3://kept", second.environment).get("x") == b"x"
    assert s3.is_up(), "the other server went with it"


@pytest.mark.process
def test_credentials_in_the_environment_do_not_replace_those_of_the_server(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "aerotrain")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "of another store")
    with s3_server(tmp_path) as server:
        assert server.is_up()
