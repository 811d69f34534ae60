"""TPU: what can be tested without one, namely how a training without a TPU ends."""

import socket

import pytest

from aerotrain.contract.errors import ExitCode, FinalError
from aerotrain.contract.training import TrainArguments
from aerotrain.training import strategies
from support.training_fixtures import MODELS, start_python

pytestmark = pytest.mark.process


@pytest.mark.parametrize("listens", [True, False])
def test_a_tpu_that_does_not_answer_is_an_error(monkeypatch, listens):
    monkeypatch.setattr(strategies, "_LISTENING", 0.5)
    with socket.socket() as server:
        server.bind(("127.0.0.1", 0))
        if listens:  # it accepts connections and sends nothing
            server.listen()
        address = f"grpc://127.0.0.1:{server.getsockname()[1]}"
        with pytest.raises(FinalError, match=rf"no TPU at '{address}' \(no answer within 0\.5 s\)"):
            strategies.ENGINES["tpu"].build(TrainArguments(model="m", data="d", tpu=address))


def test_a_training_on_a_machine_without_a_tpu_ends_with_the_reason(digits):
    code = (
        "from aerotrain.standalone.cli import main\n"
        "main(['train', '--run', 'tpu', '--strategy', 'tpu', '--tpu', 'local', '--model', 'small',"
        f" '--code', '{MODELS}', '--data', '{digits.data}', '--store', '{digits.store}'])"
    )
    with start_python(["-c", code], digits.folder) as process:
        said = process.communicate(timeout=240)[0]
    assert process.returncode == ExitCode.FINAL
    assert "error: strategy 'tpu' found no TPU at 'local'" in said
    assert "name one that this machine can reach" in said
