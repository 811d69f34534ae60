"""TPU: what can be tested without one, namely how a training without a TPU ends."""

import socket
import time

import pytest

from aerotrain.contract.errors import ExitCode
from support.training_fixtures import MODELS, start_python

pytestmark = pytest.mark.process


@pytest.fixture
def silent():
    """The address of a port that accepts connections and sends nothing."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        yield f"grpc://127.0.0.1:{server.getsockname()[1]}"


@pytest.fixture
def dead():
    """The address of a port on which no process listens."""
    with socket.socket() as held:
        held.bind(("127.0.0.1", 0))
        yield f"grpc://127.0.0.1:{held.getsockname()[1]}"


@pytest.mark.parametrize("name", ["local", "dead", "silent"])
def test_without_a_tpu_a_training_ends_within_30_seconds_with_the_reason(digits, request, name):
    address = name if name == "local" else request.getfixturevalue(name)
    code = (
        "from aerotrain.standalone.cli import main\n"
        "from aerotrain.training import strategies\n"
        "strategies.TPU_SECONDS = 2\n"
        f"main(['train', '--run', 'tpu-{name}', '--strategy', 'tpu', '--tpu', '{address}',"
        f" '--model', 'small', '--code', '{MODELS}',"
        f" '--data', '{digits.data}', '--store', '{digits.store}'])"
    )
    begun = time.monotonic()
    with start_python(["-c", code], digits.folder) as process:
        said = process.communicate(timeout=60)[0]
    assert time.monotonic() - begun < 30
    assert process.returncode == ExitCode.FINAL
    assert f"error: strategy 'tpu' found no TPU at '{address}'" in said
    assert "name one that this machine can reach" in said
