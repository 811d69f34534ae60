"""A store outage during training: the job continues, and no data is lost."""

import json
import os
import socket
import threading
from collections.abc import Iterator
from contextlib import closing, suppress
from urllib.parse import urlsplit

import pytest

from aerotrain.contract.errors import ExitCode
from aerotrain.contract.status import Progress
from aerotrain.store import open_store
from aerotrain.training.checkpoints.retention import complete_checkpoints
from aerotrain.training.model_manifest import ModelManifest
from support.training_fixtures import MODELS, read_until, start_python

pytestmark = pytest.mark.process


class Wire:
    """A TCP proxy to another port, until it is cut."""

    def __init__(self, to: tuple[str, int]) -> None:
        self._to = to
        self._is_cut = threading.Event()
        self._ends: set[socket.socket] = set()
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port = self._listener.getsockname()[1]
        threading.Thread(target=self._accept, daemon=True).start()

    def cut(self) -> None:
        """Close all connections, and accept no new ones."""
        self._is_cut.set()
        for each in list(self._ends):
            with suppress(OSError):
                each.shutdown(socket.SHUT_RDWR)

    def restore(self) -> None:
        self._is_cut.clear()

    def close(self) -> None:
        self.cut()
        self._listener.close()

    def _accept(self) -> None:
        with suppress(OSError):
            while True:
                near, _ = self._listener.accept()
                if self._is_cut.is_set():
                    near.close()
                    continue
                far = socket.create_connection(self._to)
                for one, other in ((near, far), (far, near)):
                    self._ends.add(one)
                    threading.Thread(target=self._carry, args=(one, other), daemon=True).start()

    def _carry(self, source: socket.socket, target: socket.socket) -> None:
        with suppress(OSError):
            while data := source.recv(65536):
                target.sendall(data)
        for each in (source, target):
            self._ends.discard(each)
            with suppress(OSError):
                each.shutdown(socket.SHUT_RDWR)


@pytest.fixture
def wire(s3) -> Iterator[Wire]:
    address = urlsplit(s3.environment["AWS_ENDPOINT_URL"])
    with closing(Wire((address.hostname, address.port))) as wire:
        yield wire


@pytest.fixture
def train(digits, wire, s3_url):
    """Starts a manual run whose store is behind the proxy, and which ends after the stop file."""

    def start(stop_file="none", **arguments):
        given = {"checkpoint-interval": 0.5, "steps-per-execution": 10, **arguments}
        given |= {"epochs": 100_000, "hparams": json.dumps({"stop_file": str(stop_file)})}
        words = ["-m", "aerotrain", "train", "--run", "away", "--model", "stoppable"]
        words += ["--code", str(MODELS), "--data", digits.data, "--store", s3_url]
        words += [str(each) for key, value in given.items() for each in (f"--{key}", value)]
        address = {"AWS_ENDPOINT_URL": f"http://127.0.0.1:{wire.port}"}
        return start_python(words, digits.folder, address)

    return start


def step_of(said):
    return Progress.parse(said.splitlines()[-1]).step


def test_a_training_continues_during_a_store_outage_and_ends_after_the_next(
    train, s3_url, wire, tmp_path
):
    with train(tmp_path / "enough") as process:
        read_until(process, "is in the store")
        wire.cut()
        said = read_until(process, "training continues, and tries it again")
        assert "warning: " in said.splitlines()[-1]  # another thread may print just before it
        first = step_of(read_until(process, "progress step="))
        assert step_of(read_until(process, "progress step=")) > first
        wire.restore()
        read_until(process, "all failed uploads are in the store now")
        wire.cut()
        (tmp_path / "enough").touch()
        read_until(process, "training continues, and tries it again")
        wire.restore()
        said = process.communicate(timeout=120)[0]
        assert process.returncode == ExitCode.OK, said
    train_store = open_store(f"{s3_url}/runs/away/train")
    trained = ModelManifest.load(f"{train_store.url}/model.json")
    assert complete_checkpoints(train_store)[-1].step == trained.step > first
    assert os.environ["AWS_ENDPOINT_URL"]  # over which this test has just read it


def test_a_training_past_its_outage_deadline_ends(train, wire):
    with train(**{"store-timeout": 2}) as process:
        read_until(process, "is in the store")
        wire.cut()
        said = process.communicate(timeout=120)[0]
        assert process.returncode == ExitCode.TEMPORARY, said
    assert "the store has failed for more than 2 s" in said
