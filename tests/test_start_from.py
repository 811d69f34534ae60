"""A training that starts from an earlier model: what it takes, and that it never mixes two."""

import keras
import numpy as np
import pytest

from aerotrain.check import run as check
from aerotrain.contract.errors import ExitCode, FinalError
from aerotrain.contract.steps import EvaluateArguments, check_of
from aerotrain.data.dataset import load_dataset
from aerotrain.evaluation.evaluate import candidate_of
from aerotrain.replica import Replica
from aerotrain.standalone import CHIEF
from aerotrain.store import open_store, publish
from aerotrain.training.checkpoints.metadata import model_config, words_of
from aerotrain.training.input.batches import batch_spec
from aerotrain.training.model.code import UserCode
from aerotrain.training.model_manifest import ModelManifest
from aerotrain.training.starting_point import StartingPoint, Transfer, resolve
from aerotrain.training.train import run

pytestmark = pytest.mark.process

WORDS = [str(number) for number in range(17)]

#: As many words, in another order.
CHANGED = [*reversed(WORDS)]

#: The table of the model ``worded``.
TABLE = "worded/embedding/embeddings"


@pytest.fixture(scope="module")
def train(digits):
    """Train the model ``worded``, by default without changing a weight."""

    def train(name, words=WORDS, start_from=None, epochs=1, **hparams):
        replica = digits.replica(
            "train",
            name,
            model="worded",
            data=digits.data,
            epochs=epochs,
            start_from=start_from,
            hparams={"words": words, "learning_rate": 0.0, **hparams},
        )
        try:
            return run(replica)
        finally:
            replica.lease.release()  # otherwise the next attempt waits until it expires

    return train


@pytest.fixture(scope="module")
def source(train):
    """The URL of a model that is trained."""
    return train("source", learning_rate=0.5)


@pytest.fixture(scope="module")
def weights_of(digits, tmp_path_factory):
    """The weights of a trained model by path."""

    def weights_of(url):
        trained = ModelManifest.load(url)
        code = UserCode.load(trained.module, trained.data)
        spec = batch_spec(load_dataset(digits.data).schema, code.transform)
        model = trained.restore(code, spec, tmp_path_factory.mktemp("restored"))
        return {each.path: each.numpy() for each in model.weights}

    return weights_of


@pytest.fixture
def serve(digits, tmp_path):
    """Publish a version that was made of the model at a URL."""
    served = open_store(digits.store).child("serving")

    def serve(version, model):
        folder = tmp_path / str(version)
        folder.mkdir()
        (folder / "saved_model.pb").write_text("graph")
        publish(served, folder, str(version), {"model": model, "data": digits.data})
        return f"{served.url}/{version}"

    yield serve
    for each in served.list():
        served.delete(each.key)


def assert_same(one, other):
    assert one.keys() == other.keys()
    for path in one:
        np.testing.assert_array_equal(one[path], other[path], err_msg=path)


@pytest.mark.parametrize("named", ["model.json", "folder", "run", "version", "serving"])
def test_a_model_is_named_by_its_url_its_run_or_a_version(digits, source, serve, named):
    version = serve(3, source)
    start_from = {
        "model.json": source,
        "folder": source.removesuffix("model.json"),
        "run": "source",
        "version": version,
        "serving": "serving",
    }[named]
    point = resolve(digits.job("train", "any", {}), start_from)
    assert point == StartingPoint(model=source, checkpoint=ModelManifest.load(source).checkpoint)


def test_a_training_starts_with_the_weights_of_that_model(digits, train, source, weights_of):
    url = train("same", start_from="source")
    assert_same(weights_of(url), weights_of(source))
    trained = ModelManifest.load(url)
    arguments = EvaluateArguments(model=url, data=digits.data)
    card = candidate_of(digits.replica("evaluate", "same"), arguments, url, trained)
    assert card["started from"] == source
    started = trained.started_from
    assert (started["start_from"], started["model"]) == ("source", source)
    assert len(started["taken"]) == 5
    assert started["new"] == started["left"] == []


def test_rows_of_other_words_and_a_changed_head_are_new(train, source, weights_of, capfd):
    url = train("changed", CHANGED, start_from=source, classes=12)
    said = capfd.readouterr().out
    assert f"starting from {source}\n  taken: 2 variables\n  new: {TABLE} (18, 4)" in said
    assert "the words of the lookup layers were others; worded/dense_1/kernel (8, 12)" in said
    was, now = map(weights_of, (source, url))
    initial = weights_of(train("initial", CHANGED, classes=12))
    for path in now:
        expected = was if "worded/dense/" in path else initial
        np.testing.assert_array_equal(now[path], expected[path], err_msg=path)


def test_a_first_run_has_no_version_to_start_from_and_starts_from_scratch(train, weights_of, capfd):
    url = train("first", start_from="serving")
    assert "has exported no version yet: the training starts from scratch" in capfd.readouterr().out
    assert ModelManifest.load(url).started_from["model"] is None
    assert_same(weights_of(url), weights_of(train("alone")))


def test_a_training_continues_with_the_version_that_it_began_with(
    train, source, weights_of, serve, capfd
):
    serve(1, source)
    with pytest.raises(RuntimeError, match="as the test wants it"):
        train("served", start_from="serving", fails=True)
    other = train("other", learning_rate=0.2)
    serve(2, other)
    url = train("served", start_from="serving")
    assert f"starting from {source}" in capfd.readouterr().out
    assert_same(weights_of(url), weights_of(source))
    assert train("served", start_from="serving", epochs=2) == url
    said = capfd.readouterr().out
    assert "resuming from the checkpoint of step 40" in said
    assert "starting from" not in said
    assert_same(weights_of(url), weights_of(source))
    assert ModelManifest.load(url).started_from["model"] == source
    with pytest.raises(FinalError, match="start_from was 'serving' and is None"):
        train("served", epochs=3)


@pytest.mark.parametrize(
    ("start_from", "message"),
    [
        (
            "yesterday",
            "no trained model, exported .* at file.*/runs/yesterday/t",
        ),
        ("file:///nowhere/7/", "no trained model, exported .* at file:///nowhere/7, from"),
        ("ftp://nowhere/7", "'ftp://nowhere/7' names no store"),
    ],
)
def test_a_model_that_does_not_exist_is_an_error_of_one_sentence(train, start_from, message):
    with pytest.raises(FinalError, match=message):
        train("missing", start_from=start_from)


def test_a_version_whose_training_was_deleted_is_an_error(train, serve):
    gone = "file:///nowhere/runs/r/train/model.json"
    version = serve(4, gone)
    with pytest.raises(FinalError, match=f"{version} was made of {gone}, which is gone"):
        train("orphan", start_from="serving")


def test_a_model_of_which_nothing_fits_is_an_error(train, trained):
    with pytest.raises(
        FinalError, match=r"another model, of which no variable .* worded/dense/kernel"
    ):
        train("unlike", start_from=trained)


def test_values_of_another_dtype_are_an_error(train, source):
    with pytest.raises(FinalError, match=r"do not fit the model: .* expected dtype double"):
        train("exact", start_from=source, dtype="float64")


@pytest.mark.parametrize("start_from", ["yesterday", "source"])
def test_the_first_task_checks_the_model_to_start_from(digits, source, tmp_path, capfd, start_from):
    arguments = {"model": "worded", "data": digits.data, "start_from": start_from}
    arguments["hparams"] = {"words": CHANGED, "learning_rate": 0.0}
    job = check_of(digits.job("train", "checked", arguments), {}, name="check", task="check")
    replica = Replica(job=job, name=CHIEF, attempt="1", scratch=tmp_path)
    if start_from == "yesterday":
        with pytest.raises(FinalError, match="no trained model"):
            check(replica)
        return
    check(replica)
    assert f"new: {TABLE} (18, 4): the words" in capfd.readouterr().out


@pytest.mark.parametrize("strategy", ["parameter_server", "multi_worker_mirrored"])
def test_replicas_start_with_the_same_weights(digits, train, source, weights_of, strategy):
    name = f"under-{strategy.replace('_', '-')}"
    hparams = {"words": CHANGED, "learning_rate": 0.0}
    arguments = {"model": "worded", "start_from": source, "hparams": hparams, "epochs": 1}
    with digits.cluster(name, strategy=strategy, **arguments) as processes:
        said = processes["chief"].communicate(timeout=120)[0]
        assert processes["chief"].returncode == ExitCode.OK, said
    url = f"{digits.store}/runs/{name}/train/model.json"
    alone = train("one-device", CHANGED, start_from=source)
    assert_same(weights_of(url), weights_of(alone))
    # Half of the batches, or half of each, are of another replica than the one that saves.
    one, other = (ModelManifest.load(each).metrics["accuracy"] for each in (url, alone))
    assert one == pytest.approx(other, abs=0.03)


def planned(was, now, words=("a", "b")):
    """The transfer between models with a table of words and a layer of those units."""

    def model(units, words):
        keras.utils.clear_session()
        lookup = keras.layers.StringLookup(vocabulary=[*words])
        table = keras.layers.Embedding(9, 2, name="table")
        top = keras.layers.Dense(units, name="top")
        found = keras.Sequential([keras.Input((3,), dtype="string"), lookup, table, top], name="m")
        found.compile()
        return found, {"model": model_config(found), "words": words_of(found)}

    return Transfer.plan(model(was, ["a", "b"])[1], model(now, words)[0])


def test_a_variable_that_does_not_fit_is_new_for_a_reason(capsys):
    same = planned(2, 2)
    assert same.taken.keys() == {"m/table/embeddings", "m/top/kernel", "m/top/bias"}
    assert not same.new
    wider = planned(2, 3)
    assert wider.taken.keys() == {"m/table/embeddings"}
    wider.print("title")
    said = capsys.readouterr().out
    assert "new: m/top/kernel (2, 3): its shape was (2, 2); m/top/bias (3,)" in said
    [new] = planned(2, 2, words="ba").new
    assert "m/table/embeddings (9, 2): the words" in new


def test_a_path_of_several_variables_is_not_taken():
    about = {"model": {"variables": [["m/top/kernel", [2, 2]]] * 2, "places": [0, 1]}}
    model = keras.Sequential([keras.Input((2,)), keras.layers.Dense(2, name="top")], name="m")
    model.compile()
    transfer = Transfer.plan(about, model)
    assert not transfer.taken
    assert transfer.new[0].endswith("several variables have this path")
