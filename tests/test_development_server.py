"""The server for development: TensorFlow Serving's REST API, and the versions that it follows."""

import base64
import json
import re
import signal
import sys
import threading
import urllib.error
import urllib.request

import numpy as np
import pytest
import tensorflow as tf

from aerotrain.serving.alias import promote, rollback
from aerotrain.serving.development import DevelopmentServer, Models
from aerotrain.serving.requests import write_requests
from aerotrain.store import open_store, publish
from support.training_fixtures import read_until, start
from support.waiting import wait_for

pytestmark = pytest.mark.process


class Scaled(tf.Module):
    """Multiplies ``x`` by ``factor``, and measures texts."""

    def __init__(self, factor):
        super().__init__()
        self.factor = tf.Variable(float(factor))

    @tf.function(input_signature=[tf.TensorSpec([None, 2], tf.float32, "x")])
    def scale(self, x):
        return {"predictions": self.factor * x}

    @tf.function(
        input_signature=[
            tf.TensorSpec([None], tf.string, "name"),
            tf.TensorSpec([None], tf.int64, "count"),
        ]
    )
    def describe(self, name, count):
        return {
            "length": tf.strings.length(name),
            "text": tf.strings.join([name, tf.strings.as_string(count)]),
            "name_bytes": name,
        }

    @tf.function(input_signature=[tf.TensorSpec([None], tf.string, "image")])
    def look(self, image):
        def height(content):
            return tf.shape(tf.io.decode_image(content, expand_animations=False))[0]

        return {"height": tf.map_fn(height, image, fn_output_signature=tf.int32)}


@pytest.fixture(scope="module")
def store(tmp_path_factory):
    folder = tmp_path_factory.mktemp("serving")
    store = open_store((folder / "store").as_uri())
    for version in (1, 2):
        module = Scaled(version)
        signatures = {"serving_default": module.scale, "describe": module.describe}
        signatures["look"] = module.look
        tf.saved_model.save(module, str(folder / str(version)), signatures=signatures)
        publish(store.child("flats/serving"), folder / str(version), str(version), {})
    store.put("logs/of-airflow.log", b"")
    return store


@pytest.fixture
def ask(store, tmp_path):
    """Sends a request to a server; returns the status and the JSON of the answer."""
    models = Models(store.url, tmp_path / "models", poll=0.05)
    server = DevelopmentServer(models, 0)
    threading.Thread(target=server.serve_forever, daemon=True).start()

    def ask(path, body=None):
        url = f"http://127.0.0.1:{server.server_address[1]}{path}"
        data = body if body is None or isinstance(body, bytes) else json.dumps(body).encode()
        try:
            with urllib.request.urlopen(urllib.request.Request(url, data)) as answer:
                return answer.status, json.loads(answer.read())
        except urllib.error.HTTPError as error:
            return error.code, json.loads(error.read())

    yield ask
    models.close()
    server.shutdown()
    server.server_close()


PREDICT = "/v1/models/flats:predict"


def test_rows_and_columns_are_predicted(ask):
    rows = [[1, 2.5], [0.1, -3]]
    expected = (2 * np.array(rows)).tolist()
    assert ask(PREDICT, {"instances": rows}) == (200, {"predictions": expected})
    assert ask(PREDICT, {"instances": [{"x": each} for each in rows]})[1] == {
        "predictions": expected
    }
    assert ask(PREDICT, {"inputs": rows}) == (200, {"outputs": expected})
    assert ask(PREDICT, {"inputs": {"x": rows}}) == (200, {"outputs": expected})
    answer = ask("/v1/models/flats/versions/1:predict", {"inputs": [[0.1, float("nan")]]})[1]
    assert str(answer) == "{'outputs': [[0.1, nan]]}"  # the shortest that is the same float32
    [state] = ask("/v1/models/flats")[1]["model_version_status"]
    assert (state["version"], state["state"]) == ("2", "AVAILABLE")
    models = [{"name": "flats", "version": "2", "versions": ["2", "1"]}]
    assert ask("/v1/models") == (200, {"models": models})


def test_several_inputs_and_outputs_have_names_and_bytes_are_base64(ask):
    encoded = base64.b64encode("Zürich".encode()).decode()
    rows = [{"name": "Graz", "count": 3}, {"name": {"b64": encoded}, "count": 4}]
    status, answer = ask(PREDICT, {"signature_name": "describe", "instances": rows})
    assert status == 200
    graz = base64.b64encode(b"Graz").decode()
    assert answer["predictions"] == [
        {"length": 4, "text": "Graz3", "name_bytes": {"b64": graz}},
        {"length": 7, "text": "Zürich4", "name_bytes": {"b64": encoded}},
    ]
    inputs = {"name": ["Graz"], "count": [3]}
    answer = ask(PREDICT, {"signature_name": "describe", "inputs": inputs})[1]
    assert answer["outputs"]["text"] == ["Graz3"]


@pytest.mark.parametrize(
    ("path", "body", "status", "message"),
    [
        (PREDICT, b"", 400, "the request is no JSON"),
        (PREDICT, {"inputs": [["a", 1]]}, 400, "not of the type float32"),
        (PREDICT, {"signature_name": "other"}, 400, "it has serving_default, describe, look"),
        (PREDICT, {"signature_name": "look", "instances": ["no image"]}, 400, "Unknown image file"),
        ("/v1/models/houses", None, 404, "houses/serving has no version yet"),
        ("/v1/models/flats/versions/9", None, 404, "version 9 cannot be pulled"),
        ("/v1/models/..%2f", None, 404, "there is no model"),
        ("/v2/models/flats", None, 400, "there is no GET /v2/models/flats here"),
    ],
)
def test_what_cannot_be_answered_has_a_status_and_an_error(ask, path, body, status, message):
    found, answer = ask(path, body)
    assert found == status
    assert message in answer["error"]
    assert "\n" not in answer["error"]


class Counting(tf.Module):
    """Counts its calls."""

    def __init__(self):
        super().__init__()
        self.calls = tf.Variable(0)

    @tf.function(input_signature=[tf.TensorSpec([None], tf.float32, "x")])
    def count(self, x):
        return {"calls": tf.fill(tf.shape(x), self.calls.assign_add(1))}


def test_a_model_has_answered_its_own_requests_before_the_first_one(tmp_path):
    store = open_store((tmp_path / "store").as_uri())
    module, saved = Counting(), tmp_path / "saved"
    tf.saved_model.save(module, str(saved), signatures={"serving_default": module.count})
    write_requests(saved, "new", {"x": np.zeros(2, np.float32)}, {"calls": np.ones(2, np.int32)})
    publish(store.child("new/serving"), saved, "1", {})
    models = Models(store.url, tmp_path / "models")
    models.close()
    answer = models.get("new").predict({"instances": [0.0]})
    assert answer == {"predictions": [4]}  # both records, and each alone, came before


def test_a_promotion_and_a_rollback_reach_the_server_without_a_failed_request(store, ask):
    versions = store.child("flats/serving")
    promote(versions, 1, by="ann")
    assert ask(PREDICT, {"inputs": [[1, 1]]})[1] == {"outputs": [[1.0, 1.0]]}
    answers = []

    def serves(version):
        answers.append(ask(PREDICT, {"inputs": [[1, 1]]}))
        return answers[-1][1] == {"outputs": [[float(version)] * 2]}

    promote(versions, 2, by="ann")
    wait_for("version 2", lambda: serves(2), 30)
    rollback(versions, by="ann")
    wait_for("version 1", lambda: serves(1), 30)
    assert {status for status, _ in answers} == {200}
    versions.delete("aliases/serving.json")


def test_a_server_that_is_ended_leaves_no_file(store, tmp_path):
    words = [sys.executable, "-m", "aerotrain", "serve", store.url, "--port", "0"]
    with start(words, tmp_path, {"TMPDIR": str(tmp_path)}) as process:
        [url] = re.findall(r"http://\S+:\d+", read_until(process, "POST to"))
        body = json.dumps({"instances": [[1, 2]]}).encode()
        with urllib.request.urlopen(f"{url}{PREDICT}", body) as answer:
            assert answer.status == 200
        assert list(tmp_path.iterdir()), "the model that it has loaded"
        process.send_signal(signal.SIGTERM)
        process.communicate(timeout=60)
    assert not list(tmp_path.iterdir())
