"""An exported version is checked in the server that will serve it, by REST."""

import json
import sys
import threading
from pathlib import Path

import numpy as np
import pytest
import urllib3

from aerotrain.contract.errors import FinalError
from aerotrain.serving import export, serve_check
from aerotrain.serving.development import DevelopmentServer, Models
from aerotrain.serving.requests import Exchange, PredictionLog, read_requests, write_requests
from aerotrain.serving.versions import BODY
from aerotrain.store import fetch, open_store, publish

pytestmark = pytest.mark.process

#: The command line of TensorFlow Serving.
SERVER = [sys.executable, str(Path(__file__).parent / "support" / "model_server_double.py")]
SERVER += ["--port={grpc_port}", "--rest_api_port={rest_port}", "--model_name={name}"]
SERVER += ["--model_base_path={folder}", "--file_system_poll_wait_seconds=0.1"]

SHORT = {"rate": 20, "seconds": 1}

#: A PredictionLog that the package tensorflow-serving-api 2.21 wrote, with a request of version 3
#: of the model ``n`` with x = [1.5], and a response.
LOG = (
    "32550a2f0a180a016e120208031a0f73657276696e675f64656661756c7412130a0178120e08011204120208012a04"
    "0000c03f12220a170a017912120801120812020801120208012a040000003f12070a016e12020803"
)


@pytest.fixture(scope="module")
def version(digits, trained):
    return export.run(digits.replica("export", "to-be-served", model=trained, data=digits.data))


@pytest.fixture(scope="module")
def saved(version, tmp_path_factory):
    """A copy of the version on this disk."""
    folder = tmp_path_factory.mktemp("saved")
    parent, _, number = version.rpartition("/")
    fetch(open_store(parent), number, folder / number)
    return folder / number


def check(digits, run, version, **arguments):
    return serve_check.run(digits.replica("serve_check", run, version=version, **arguments))


def test_a_server_of_a_command_is_started_and_asked(digits, version):
    figures = check(digits, "good", version, command=SERVER, **SHORT)
    assert figures["requests"] == 20
    assert 0 < figures["p50_ms"] <= figures["p99_ms"]


def test_a_server_that_answers_otherwise_than_the_trained_model_fails_the_check(
    digits, version, saved, tmp_path
):
    parent = open_store(version.rpartition("/")[0])
    about = fetch(parent, saved.name, tmp_path).about
    whole = next(read_requests(saved))
    trained = {name: value + 1e-3 for name, value in whole.outputs.items()}
    write_requests(tmp_path, "digits", whole.inputs, trained)
    publish(parent, tmp_path, "99", about)
    with pytest.raises(FinalError, match=r"request 0: the output 'predictions' differs fro"):
        check(digits, "other", f"{parent.url}/99", command=SERVER, **SHORT)


def test_a_server_that_is_too_slow_or_ends_fails_the_check(digits, version, capsys):
    with pytest.raises(FinalError, match=r"99th percentile is above 0\.001 ms: .*requests 20"):
        check(digits, "slow", version, p99=0.001, **SHORT)  # the server for development
    assert "the server answers as the trained model: p50_ms" in capsys.readouterr().out
    ends = [sys.executable, "-c", "raise SystemExit('no such model')"]
    with pytest.raises(FinalError, match=r"server ended with 1:\nno such model"):
        check(digits, "ends", version, command=ends, **SHORT)
    with pytest.raises(FinalError, match="the server cannot be started by 'no-such-program'"):
        check(digits, "none", version, command=["no-such-program"], **SHORT)


def test_the_body_that_an_export_carries_is_answered_by_the_server_for_development(
    digits, version, saved, tmp_path
):
    whole, *alone = read_requests(saved)
    assert len(whole.inputs["image"]) == 32
    assert len(alone) == 8
    models = Models(Path(digits.store.removeprefix("file://")).parent.as_uri(), tmp_path)
    name = digits.store.rpartition("/")[2]
    with DevelopmentServer(models, 0) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        path = f"http://127.0.0.1:{server.server_port}/v1/models/{name}:predict"
        answer = urllib3.request("POST", path, body=(saved / BODY).read_bytes())
        rows = json.loads(answer.data)["predictions"]
        np.testing.assert_allclose(rows, whole.outputs["predictions"][:2], rtol=1e-5, atol=1e-5)
        server.shutdown()
    models.close()


def test_requests_are_the_messages_of_tensorflow_serving():
    theirs = Exchange.from_bytes(bytes.fromhex(LOG))
    assert theirs.inputs["x"].tolist() == [1.5]
    assert theirs.outputs["y"].tolist() == [[0.5]]
    log = PredictionLog.FromString(bytes.fromhex(LOG))
    log.DiscardUnknownFields()  # the version, which ours does not name
    log.predict_log.response.model_spec.signature_name = "serving_default"
    assert theirs.to_bytes("n") == log.SerializeToString(deterministic=True)
