"""The database of `make run` and `make up`: it keeps its data, and needs a password."""

import os
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from socket import SOCK_STREAM

import psutil
import psycopg2
import pytest

from aerotrain.contract.errors import FinalError
from devtools.postgres import Postgres, postgres, prefix_for
from support.listening import listening
from support.waiting import wait_for

pytestmark = pytest.mark.process

PASSWORD = "of this test"


@pytest.fixture
def server(tmp_path: Path) -> Iterator[Postgres]:
    with postgres(tmp_path, tmp_path / "log", PASSWORD) as server:
        server.start()
        asked(server, "CREATE TABLE kept (run text)")
        asked(server, "INSERT INTO kept VALUES ('one')")
        yield server


def asked(server: Postgres, query: str) -> object:
    """The first value of the answer, if it has one."""
    with closing(psycopg2.connect(address(server, PASSWORD))) as connection, connection:
        cursor = connection.cursor()
        cursor.execute("SET synchronous_commit = on")
        cursor.execute(query)
        row = cursor.fetchone() if cursor.description else None
        return row and row[0]


def address(server: Postgres, password: str) -> str:
    return server.url.replace("+psycopg2", "").replace(PASSWORD, password)


def main_process(folder: Path) -> psutil.Process:
    return psutil.Process(int(next(folder.glob("*/postmaster.pid")).read_text().split()[0]))


def test_a_server_that_was_killed_is_started_again_with_its_data(
    server: Postgres, tmp_path: Path
) -> None:
    pid = next(tmp_path.glob("*/postmaster.pid"))
    left = pid.read_text().splitlines()
    main_process(tmp_path).kill()
    server.exit_code()
    # After a restart of the machine, another process of this user may have its id.
    pid.write_text("\n".join([str(os.getppid()), *left[1:], ""]))
    said: list[str] = []

    def restarted() -> bool:
        said.append(server.restart_if_ended())
        return "and was started again" in said[-1]

    # Its other processes end by themselves, and hold its shared memory until then.
    wait_for("a restart", restarted, 60)
    assert "postgres ended with SIGKILL" in said[0]
    assert asked(server, "SELECT run FROM kept") == "one"


def test_a_server_continues_with_the_data_of_the_one_before(
    server: Postgres, tmp_path: Path
) -> None:
    assert server.is_new
    server.stop()
    with postgres(tmp_path, tmp_path / "log", PASSWORD) as later:
        assert not later.is_new
        later.start()
        assert asked(later, "SELECT run FROM kept") == "one"


def test_only_loopback_reaches_the_database_and_only_with_its_password(
    server: Postgres, tmp_path: Path
) -> None:
    process = main_process(tmp_path)
    assert {each.host for each in listening([process])} == {"127.0.0.1"}
    streams = [each for each in process.net_connections("unix") if each.type == SOCK_STREAM]
    assert streams == []
    for password in ("", "another"):
        with pytest.raises(psycopg2.OperationalError, match="password"):
            psycopg2.connect(address(server, password))
    assert PASSWORD not in " ".join(process.cmdline())


def test_root_without_another_user_is_told_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    said = r"does not run as root, .* or set AIRFLOW__DATABASE__SQL_ALCHEMY_CONN to another"
    with pytest.raises(FinalError, match=said):
        prefix_for(0, Path("postgres"))
