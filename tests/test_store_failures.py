"""Store failures (killed, full, unavailable, denied): no partial object, and a clear error."""

import os
import socket
import subprocess
import sys
import textwrap
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from functools import partial
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from aerotrain.contract.errors import AerotrainError, FinalError, SpecError, TemporaryError
from aerotrain.store import (
    ChangedError,
    CorruptError,
    ExistsError,
    MissingError,
    Store,
    StoreFull,
    StoreRefused,
    StoreUnavailable,
    fetch_file,
    open_store,
    probe,
    s3,
)
from aerotrain.store.local import LocalStore
from aerotrain.store.manifest import StoredFile
from devtools.s3_server import S3Server

KEYS = {"AWS_ACCESS_KEY_ID": "x", "AWS_SECRET_ACCESS_KEY": "x"}


class Endpoint(BaseHTTPRequestHandler):
    """An endpoint that logs nothing."""

    def log_message(self, *_: object) -> None: ...


class ManyAtOnce(ThreadingHTTPServer):
    request_queue_size = 100


@contextmanager
def behind(endpoint: type[Endpoint]) -> Iterator[Store]:
    """A store behind such an endpoint."""
    with ManyAtOnce(("127.0.0.1", 0), endpoint) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        url = f"http://127.0.0.1:{server.server_port}"
        yield open_store("s3://bucket/x", KEYS | {"AWS_ENDPOINT_URL": url})
        server.shutdown()


_KILLED_WHILE_WRITING = """
    import os, sys
    from pathlib import Path
    from aerotrain.store.local import write_whole

    def half(file):
        file.write(b"half of it")
        file.flush()
        os.kill(os.getpid(), 9)

    write_whole(Path(sys.argv[1]), half)
"""


@pytest.mark.process
def test_a_writer_that_is_killed_leaves_the_old_object(tmp_path: Path) -> None:
    store = open_store(tmp_path.as_uri())
    store.put("x", b"old")
    killed = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(_KILLED_WHILE_WRITING), str(tmp_path / "x")],
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
        check=False,
    )
    assert killed.returncode == -9
    assert store.get("x") == b"old"
    assert [each.key for each in store.list()] == ["x"]


@pytest.mark.usefixtures("small_files")
def test_a_full_disk_is_a_temporary_error_and_leaves_nothing(tmp_path: Path) -> None:
    store = open_store(tmp_path.as_uri())
    store.put("x", b"old")
    with pytest.raises(StoreFull, match="no room is left") as failure:
        store.put("x", b"new" * (1 << 20))
    assert isinstance(failure.value, TemporaryError)
    assert store.get("x") == b"old"
    assert [path.name for path in tmp_path.iterdir()] == ["x"]


@pytest.mark.process
def test_a_download_to_a_full_disk_fails_and_leaves_no_file(
    s3_url: str, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    store = open_store(s3_url)
    store.put("big", bytes(2 << 20))
    request.getfixturevalue("small_files")
    with pytest.raises(StoreFull, match=r"big .*free some space"):
        store.download("big", tmp_path / "down/big")
    assert list((tmp_path / "down").iterdir()) == []


@pytest.mark.skipif(os.getuid() == 0, reason="root may write everywhere")
def test_a_folder_without_permission_is_refused(tmp_path: Path) -> None:
    tmp_path.chmod(0o500)
    with pytest.raises(StoreRefused, match="change its permissions"):
        open_store(tmp_path.as_uri()).put("x", b"")


@pytest.mark.process
def test_a_wrong_secret_is_refused(s3: S3Server, s3_url: str) -> None:
    for wrong in ({"AWS_SECRET_ACCESS_KEY": "wrong"}, {"AWS_ACCESS_KEY_ID": "nobody"}):
        store = open_store(s3_url, s3.environment | wrong)
        with pytest.raises(StoreRefused, match="check AWS_ACCESS_KEY_ID"):
            probe(store)
        with pytest.raises(StoreRefused):
            store.exists("x")
        with pytest.raises(StoreRefused):
            list(store.list())


@pytest.mark.process
def test_a_missing_bucket_is_named(s3: S3Server, tmp_path: Path) -> None:
    store = open_store("s3://no-such-bucket/x", s3.environment)
    (tmp_path / "x").touch()
    for use in (
        lambda: store.get("x"),
        lambda: store.put("x", b""),
        lambda: store.upload(tmp_path / "x", "x"),
        lambda: list(store.list()),
    ):
        with pytest.raises(FinalError, match="there is no bucket 'no-such-bucket' at http://127"):
            use()


def test_an_endpoint_without_a_listener_is_unavailable() -> None:
    _expect_unavailable("http://127.0.0.1:1")


@pytest.mark.process
def test_an_unresponsive_endpoint_is_unavailable_within_a_minute(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    assert s3._ATTEMPTS * s3._ANSWER_SECONDS < 50, "and the pauses between attempts"
    monkeypatch.setattr(s3, "_ANSWER_SECONDS", 1.0)
    with socket.create_server(("127.0.0.1", 0), backlog=16) as unresponsive:
        _expect_unavailable(f"http://127.0.0.1:{unresponsive.getsockname()[1]}")


def test_an_interrupted_download_is_a_temporary_error(tmp_path: Path) -> None:
    """An endpoint that promises 1000 bytes, sends 10 and disconnects."""

    class Breaking(Endpoint):
        def do_HEAD(self) -> None:
            self.send_response(200)
            self.send_header("Content-Length", "1000")
            self.end_headers()

        def do_GET(self) -> None:
            self.do_HEAD()
            self.wfile.write(b"x" * 10)

    with behind(Breaking) as store:
        with pytest.raises(StoreUnavailable):
            store.get("object")
        with pytest.raises(StoreUnavailable):
            store.download("object", tmp_path / "object")
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("condition", [{"if_absent": True}, {"if_match": "before"}], ids=str)
@pytest.mark.parametrize("written", [b"own", b"another's"])
def test_a_conditional_write_whose_response_was_lost_is_recognized_by_its_content(
    condition: dict[str, Any], written: bytes
) -> None:
    """An endpoint that carries out a write, disconnects, and rejects the repeated write."""
    came: list[str] = []

    class Forgetful(Endpoint):
        def do_PUT(self) -> None:
            self.rfile.read(int(self.headers["Content-Length"]))
            came.append(str(self.headers["If-Match"] or self.headers["If-None-Match"]))
            if len(came) > 1:
                self._answer(412)

        def do_GET(self) -> None:
            self._answer(200, written)

        def _answer(self, status: int, content: bytes = b"") -> None:
            self.send_response(status)
            self.send_header("ETag", '"after"')
            self.send_header("Content-Length", str(len(content)))
            self.end_headers()
            self.wfile.write(content)

    with behind(Forgetful) as store:
        if written == b"own":
            assert store.put("object", b"own", **condition) == "after"
        else:
            with pytest.raises((ExistsError, ChangedError)):
                store.put("object", b"own", **condition)
    assert came == ['"before"' if "if_match" in condition else "*"] * 2


class Denying(Endpoint):
    """An endpoint that answers a key ``<status>-<code>`` with these, to HEAD without the code."""

    def do_HEAD(self) -> None:
        self._answer("")

    def do_GET(self) -> None:
        code = self.path.rpartition("-")[2]
        self._answer(f"<Error><Code>{code}</Code></Error>" if code else "")

    def _answer(self, body: str) -> None:
        status, is_key, _ = self.path.rpartition("/")[2].partition("-")
        self.send_response(int(status) if is_key else 200)  # botocore asks for the bucket, too
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body.encode())


#: What the codes that S3 documents mean for a run, besides those of requests that are not made.
CODES = {
    StoreUnavailable: """
        400-BadDigest 400-ExpiredToken 400-IncompleteBody 400-RequestTimeout
        400-TokenRefreshRequired
        400-XAmzContentSHA256Mismatch 400- 403-RequestExpired 403-RequestTimeTooSkewed
        409-ConditionalRequestConflict 409-OperationAborted 429-TooManyRequestsException
        500-InternalError 502- 503-Busy 503-ServiceUnavailable 503-SlowDown""",
    StoreRefused: """
        401-Unauthorized 403-AccessDenied 403-AccountProblem 403-AllAccessDisabled
        403-InvalidAccessKeyId 403-InvalidSecurity 403-NotSignedUp
        403-SignatureDoesNotMatch 403-""",
    MissingError: "404-NoSuchKey 404-NoSuchVersion 404-",
    FinalError: """
        400-AuthorizationHeaderMalformed 400-InvalidArgument
        400-InvalidBucketName 400-InvalidRequest 400-InvalidToken 400-KeyTooLongError
        404-NoSuchBucket 405-MethodNotAllowed 501-NotImplemented""",
}


def test_each_error_code_is_worth_another_try_or_final_also_in_a_response_without_a_body() -> None:
    """A response to HEAD has no code; 400 is that of an expired token, for one."""

    def kind(use: Callable[[str], object], key: str) -> type[Exception] | None:
        try:
            use(key)
        except AerotrainError as error:
            return type(error)
        return None

    with behind(Denying) as store:
        expected = {key: each for each, codes in CODES.items() for key in codes.split()}
        with ThreadPoolExecutor(len(expected)) as pool:  # botocore pauses before each try
            got = dict(zip(expected, pool.map(partial(kind, store.get), expected), strict=True))
            head = dict(zip(expected, pool.map(partial(kind, store.stat), expected), strict=True))
    assert got == expected
    assert head == {**expected, "404-NoSuchBucket": MissingError}


def test_a_download_that_is_damaged_once_is_repeated_and_twice_is_corrupt(tmp_path: Path) -> None:
    class Noisy(LocalStore):
        damaged = 0

        def get_range(self, key: str, start: int, end: int, etag: str) -> bytes:
            self.damaged -= 1
            data = super().get_range(key, start, end, etag)
            return data[::-1] if self.damaged >= 0 else data

    store = Noisy(tmp_path / "store")
    store.put("x", b"content")
    expected = StoredFile.of(tmp_path / "store/x")
    store.damaged = 1
    fetch_file(store, "x", expected, tmp_path / "down/x")
    assert (tmp_path / "down/x").read_bytes() == b"content"
    (tmp_path / "down/x").unlink()
    store.damaged = 2
    with pytest.raises(CorruptError, match="x is corrupt: its manifest says 7 bytes"):
        fetch_file(store, "x", expected, tmp_path / "down/x")
    assert not list((tmp_path / "down").iterdir())


def _expect_unavailable(endpoint: str) -> None:
    store = open_store("s3://bucket/x", KEYS | {"AWS_ENDPOINT_URL": endpoint})
    began = time.monotonic()
    with pytest.raises(StoreUnavailable, match=f"{endpoint} did not answer"):
        probe(store)
    assert time.monotonic() - began < 60


def test_an_endpoint_that_is_not_a_url_is_refused() -> None:
    with pytest.raises(SpecError, match="AWS_ENDPOINT_URL is 'nonsense'"):
        open_store("s3://bucket", {"AWS_ENDPOINT_URL": "nonsense"})
