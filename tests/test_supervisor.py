"""The supervisor of local processes, as far as it needs no process."""

import os
import time
from pathlib import Path

import pytest

from aerotrain.supervisor import protocol
from aerotrain.supervisor.fork_server import version
from aerotrain.supervisor.replica_process import ReplicaFolder
from aerotrain.supervisor.supervisor import SupervisedReplica


@pytest.fixture
def replica(tmp_path: Path) -> SupervisedReplica:
    folder = ReplicaFolder(tmp_path / "chief")
    os.close(folder.make_ready())
    began = time.monotonic() - 100  # and no heartbeat has been seen since
    return SupervisedReplica(
        folder, 0, reaper=os.getpid(), heartbeat=folder.heartbeat(), heartbeat_seen=began
    )


def age(replica: SupervisedReplica) -> float:
    replica.check_heartbeat()
    return float(replica.record()["heartbeat_age"])


def test_the_age_of_a_heartbeat_is_measured_from_its_observation(
    replica: SupervisedReplica,
) -> None:
    assert age(replica) >= 100
    (replica.folder.path / "heartbeat").touch()
    os.utime(replica.folder.path / "heartbeat", (5, 5))
    assert age(replica) < 50


def test_a_restarted_replica_has_an_empty_scratch_folder_and_continues_its_log(
    tmp_path: Path,
) -> None:
    folder = ReplicaFolder(tmp_path / "chief")
    for _ in range(2):
        log = folder.make_ready()
        assert list((folder.path / "work").rglob("*")) == [folder.path / "work" / "tmp"]
        assert not (folder.path / "termination-log").exists()
        (folder.path / "work" / "left").touch()
        (folder.path / "termination-log").touch()
        os.write(log, b"a line that is cut")
        os.close(log)
    assert (folder.path / "log").read_text() == "a line that is cut\na line that is cut"


def test_the_socket_folder_is_private_to_the_user_and_its_paths_are_short() -> None:
    folder = protocol.runtime_folder()
    assert (folder.stat().st_uid, folder.stat().st_mode & 0o777) == (os.getuid(), 0o700)
    longest = protocol.socket_of(Path("/a" * 2000))
    assert len(str(longest)) < 100


def test_the_code_version_changes_with_any_file(tmp_path: Path) -> None:
    (tmp_path / "deep").mkdir()
    source = tmp_path / "deep" / "module.py"
    source.write_text("")
    before = version(tmp_path)
    assert version(tmp_path) == before
    os.utime(source, (5, 5))
    assert version(tmp_path) != before
