"""The S3 server of `make run` and compose: it keeps its data, and every port needs a credential."""

import http.client
import itertools
import os
import signal
import ssl
import stat
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import grpc
import psutil
import pytest

from aerotrain.store import open_store
from aerotrain.supervisor.ports import reserved_ports
from devtools.s3_server import CREDENTIALS, OwnS3Server, S3Server, s3_server
from devtools.weed import CERTIFICATE, PORT_FLAGS
from support.listening import Address, listening

pytestmark = pytest.mark.process

ROOT = Path(__file__).parent.parent
SERVE = ROOT / "images" / "compose" / "serve-s3"

#: Requests of S3, the filer, the master and the volume server, by HTTP: list, read, replace, add
#: and delete an object, allocate a place for a new one, and change the servers themselves.
REQUESTS = (
    ("GET", "/"),
    ("GET", "/buckets/kept/"),
    ("GET", "/buckets/kept/model"),
    ("PUT", "/buckets/kept/model"),
    ("POST", "/buckets/kept/stray"),
    ("DELETE", "/buckets/kept/model"),
    ("GET", "/kept?list-type=2"),
    ("GET", "/kept/model"),
    ("PUT", "/kept/model"),
    ("PUT", "/stray"),
    ("DELETE", "/kept/model"),
    ("GET", "/dir/assign"),
    ("GET", "/dir/lookup?volumeId=1&fileId=1,01637037d6"),
    ("GET", "/dir/status"),
    ("GET", "/vol/grow?count=1"),
    ("GET", "/vol/status"),
    ("GET", "/vol/vacuum"),
    ("POST", "/submit"),
    ("GET", "/col/delete?collection=kept"),
    ("GET", "/collection/info?collection=kept"),
    ("GET", "/cluster/status"),
    ("GET", "/ui/index.html"),
    ("GET", "/stats/disk"),
    ("GET", "/metrics"),
    ("GET", "/debug/pprof/cmdline"),
    ("GET", "/1,01637037d6"),
    ("DELETE", "/1,01637037d6"),
)

#: The same by gRPC. ``0a`` begins the first field, a string: in ListEntries it is the folder.
CALLS = {
    "/filer_pb.SeaweedFiler/ListEntries": b"\n\x08/buckets",
    "/filer_pb.SeaweedFiler/DeleteEntry": b"\n\x0d/buckets/kept\x12\x05model",
    "/master_pb.Seaweed/Assign": b"\x08\x01",
    "/master_pb.Seaweed/CollectionDelete": b"\n\x04kept",
    "/volume_server_pb.VolumeServer/VolumeServerStatus": b"",
    "/messaging_pb.SeaweedS3IamCache/PutIdentity": b"",
    "/worker_pb.WorkerService/WorkerStream": b"",
}


def answers(at: Address, tls: ssl.SSLContext | None) -> Iterator[str]:
    """A server's responses to requests that it should reject."""
    for method, path in REQUESTS:
        if tls is None:
            connection = http.client.HTTPConnection(*at, timeout=10)
        else:
            connection = http.client.HTTPSConnection(*at, timeout=10, context=tls)
        try:
            connection.request(method, path, b"other" if method in {"PUT", "POST"} else None)
            status = connection.getresponse().status
        except (OSError, http.client.HTTPException):
            continue
        finally:
            connection.close()
        if status < 400 or status == 404:  # 404: it looked, and would have sent the object
            yield f"{at.port}: {status} to {method} {path} {'over TLS' if tls else ''}"


def grpc_answers(at: Address, credentials: grpc.ChannelCredentials | None) -> Iterator[str]:
    """A server's gRPC responses, except UNAVAILABLE."""
    target, options = f"{at.host}:{at.port}", [("grpc.ssl_target_name_override", "localhost")]
    for method, request in CALLS.items():
        if credentials is None:
            channel = grpc.insecure_channel(target)
        else:
            channel = grpc.secure_channel(target, credentials, options)
        with channel:
            try:
                list(channel.unary_stream(method)(request, timeout=10))
                said = "OK"
            except grpc.RpcError as error:
                if error.code() is grpc.StatusCode.UNAVAILABLE:
                    continue
                said = str(error.code())
        yield f"{at.port}: {said} to {method} {'over TLS' if credentials else ''}"


def without_certificate() -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    return context


def tried(at: Address) -> Iterator[str]:
    """All responses of a port without a credential, by HTTP and gRPC, with and without TLS."""
    yield from answers(at, None)
    yield from answers(at, without_certificate())
    yield from grpc_answers(at, None)
    try:
        theirs = ssl.get_server_certificate(at, timeout=10)
    except OSError:
        return  # it does not use TLS
    yield from grpc_answers(at, grpc.ssl_channel_credentials(theirs.encode()))


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of ``server``."""
    return tmp_path_factory.mktemp("ports")


@pytest.fixture(scope="module")
def server(folder: Path) -> Iterator[OwnS3Server]:
    """A server with a model of several chunks, so that it is stored on the volume server."""
    with s3_server(folder) as server:
        server.make_bucket("kept")
        open_store("s3://kept", server.environment).put("model", MODEL)
        yield server


MODEL = bytes(range(256)) * (1 << 15)


def test_no_port_lists_reads_writes_or_deletes_without_a_credential(
    server: OwnS3Server,
) -> None:
    found = listening([psutil.Process(server.process.pid)])
    assert {each.port for each in found} == set(server.ports)
    assert {each.host for each in found} == {"127.0.0.1"}
    assert list(itertools.chain.from_iterable(map(tried, found))) == []
    store = open_store("s3://kept", server.environment)
    assert [each.key for each in store.list()] == ["model"]
    assert store.get("model") == MODEL


def test_a_certificate_alone_reads_and_writes_no_object(server: OwnS3Server, folder: Path) -> None:
    """The volume server and the filer also require a token from a signing key."""
    tls = ssl.create_default_context(cafile=folder / CERTIFICATE)
    tls.load_cert_chain(folder / CERTIFICATE)
    ports = dict(zip(PORT_FLAGS, server.ports, strict=True))
    place = asked(tls, ports["master.port"], "GET", "/vol/status")
    assert place == 200, "nothing speaks with the certificate, so this test proves nothing"
    for method, path in REQUESTS[1:6]:
        assert asked(tls, ports["filer.port"], method, path) == 401, (method, path)
    for method, path in REQUESTS[-2:]:
        assert asked(tls, ports["volume.port"], method, path) == 401, (method, path)


def asked(tls: ssl.SSLContext, port: int, method: str, path: str) -> int:
    connection = http.client.HTTPSConnection("127.0.0.1", port, timeout=10, context=tls)
    connection.request(method, path)
    try:
        return connection.getresponse().status
    finally:
        connection.close()


def test_no_secret_of_a_server_is_on_its_command_line_or_for_other_users(
    server: OwnS3Server, folder: Path
) -> None:
    process = psutil.Process(server.process.pid)
    keys = [value for name, value in process.environ().items() if name.startswith("WEED_JWT_")]
    assert len(set(keys)) == 4
    said = " ".join(process.cmdline())
    assert [each for each in [*keys, server.secret_key] if each in said] == []
    private = [folder / CERTIFICATE, folder / CREDENTIALS]
    assert [stat.S_IMODE(each.stat().st_mode) for each in private] == [0o600, 0o600]


def wait_until(true: Callable[[], bool]) -> None:
    end = time.monotonic() + 60
    while not true():
        assert time.monotonic() < end, "it did not come up within a minute"
        time.sleep(0.1)  # there is no event to wait for


def test_a_server_keeps_its_objects_from_one_start_to_the_next(
    s3: S3Server, tmp_path: Path
) -> None:
    with s3_server(tmp_path) as first:
        first.make_bucket("kept")
        open_store("s3://kept", first.environment).put("x", b"x")
    assert first.process.returncode is not None
    assert not list(Path("/tmp").glob(f"weed.*.{first.process.pid}"))
    with s3_server(tmp_path) as second:
        second.make_bucket("kept")
        assert second.secret_key == first.secret_key
        assert open_store("s3://kept", second.environment).get("x") == b"x"
    assert s3.is_up(), "the other server went with it"


def test_a_server_that_was_killed_is_started_again_with_its_objects(tmp_path: Path) -> None:
    with s3_server(tmp_path) as server:
        server.make_bucket("kept")
        store = open_store("s3://kept", server.environment)
        store.put("model", MODEL)
        assert server.restart_if_ended() == ""
        server.process.kill()
        server.process.wait()
        assert "s3-server ended with SIGKILL and was started again" in server.restart_if_ended()
        assert store.get("model") == MODEL
        store.put("another", b"x")


@contextmanager
def composed(data: Path) -> Iterator[tuple[psutil.Process, S3Server]]:
    """The command of the compose file's store; other containers reach it at 127.0.0.2."""
    environment = {
        "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",
        "PYTHONPATH": str(ROOT / "devtools"),
        "AWS_ACCESS_KEY_ID": "aerotrain",
        "AWS_SECRET_ACCESS_KEY": "of this test",
        "S3_BUCKET": "kept",
    }
    with reserved_ports(len(PORT_FLAGS)) as held:
        ports = [each.number for each in held]
        command = [sys.executable, str(SERVE), str(data), "127.0.0.2", *map(str, ports)]
        with subprocess.Popen(command, env=environment, start_new_session=True) as process:
            server = S3Server(ports=ports, access_key="aerotrain", secret_key="of this test")
            try:
                wait_until(server.is_up)
                yield psutil.Process(process.pid), server
            finally:
                with suppress(ProcessLookupError):
                    os.killpg(process.pid, signal.SIGKILL)


def test_other_containers_reach_only_s3_and_only_with_a_credential(tmp_path: Path) -> None:
    (tmp_path / "data").mkdir()
    with composed(tmp_path / "data") as (process, server):
        store = open_store("s3://kept", server.environment)
        store.put("model", MODEL)
        found = listening([process])
        assert {each.port for each in found} == set(server.ports)
        # weed serves S3 only with a gRPC port at the same address.
        assert {each.port for each in found if each.host != "127.0.0.1"} == set(server.ports[-2:])
        assert list(itertools.chain.from_iterable(map(tried, found))) == []
        assert [each.key for each in store.list()] == ["model"]
        words = " ".join(word for each in process.children() for word in each.cmdline())
        assert "of this test" not in words
        family = [process, *process.children(recursive=True)]
        process.terminate()
        assert process.wait(30) == 0
        assert not psutil.wait_procs(family, 0)[1]


def test_the_store_of_compose_ends_with_either_of_its_processes(tmp_path: Path) -> None:
    """Docker then restarts it."""
    (tmp_path / "data").mkdir()
    with composed(tmp_path / "data") as (process, _):
        family = process.children()
        next(each for each in family if each.cmdline()[1] == "s3").kill()
        assert process.wait(30) != 0
        assert not psutil.wait_procs(family, 0)[1]
