"""A training that starts from an earlier model: what it takes, and that it never mixes two."""

import re

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
from aerotrain.training.checkpoints.transfer import (
    Transfer,
    Variables,
    Vocabularies,
    vocabularies_of,
)
from aerotrain.training.input.batches import batch_spec
from aerotrain.training.model.code import UserCode
from aerotrain.training.model_manifest import ModelManifest
from aerotrain.training.starting_point import StartingPoint, resolve
from aerotrain.training.train import run

pytestmark = pytest.mark.process

WORDS = [str(number) for number in range(17)]

#: The same words and two more, in another order.
GROWN = ["above", *reversed(WORDS), "below"]

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
    assert started["by_word"] == started["new"] == started["left"] == []


def test_known_words_keep_their_rows_and_a_changed_head_is_new(train, source, weights_of, capfd):
    url = train("grown", GROWN, start_from=source, classes=12)
    said = capfd.readouterr().out
    assert (
        f"starting from {source}\n"
        "  taken: 2 variables\n"
        "  taken by word: worded/embedding/embeddings, 18 of 20 words\n"
        "  new: worded/dense_1/kernel (8, 12): its shape was (8, 10);"
        " worded/dense_1/bias (12,): its shape was (10,)\n"
        "  left: worded/dense_1/kernel (8, 10); worded/dense_1/bias (10,)\n"
    ) in said
    was, now, initial = map(weights_of, (source, url, train("initial", GROWN, classes=12)))
    old, new, random = (each.pop(TABLE) for each in (was, now, initial))
    for row, word in enumerate(["[UNK]", *GROWN]):
        expected = random[row] if word in ("above", "below") else old[["[UNK]", *WORDS].index(word)]
        np.testing.assert_array_equal(new[row], expected, err_msg=word)
    for path in now:
        expected = initial if "dense_1" in path else was
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
    arguments["hparams"] = {"words": GROWN, "learning_rate": 0.0}
    job = check_of(digits.job("train", "checked", arguments), {}, name="check", task="check")
    replica = Replica(job=job, name=CHIEF, attempt="1", scratch=tmp_path)
    if start_from == "yesterday":
        with pytest.raises(FinalError, match="no trained model"):
            check(replica)
        return
    check(replica)
    assert "taken by word: worded/embedding/embeddings, 18 of 20 words" in capfd.readouterr().out


@pytest.mark.parametrize("strategy", ["parameter_server", "multi_worker_mirrored"])
def test_replicas_start_with_the_same_weights(digits, train, source, weights_of, strategy):
    name = f"under-{strategy.replace('_', '-')}"
    hparams = {"words": GROWN, "learning_rate": 0.0}
    arguments = {"model": "worded", "start_from": source, "hparams": hparams, "epochs": 1}
    with digits.cluster(name, strategy=strategy, **arguments) as processes:
        said = processes["chief"].communicate(timeout=120)[0]
        assert processes["chief"].returncode == ExitCode.OK, said
    url = f"{digits.store}/runs/{name}/train/model.json"
    alone = train("one-device", GROWN, start_from=source)
    assert_same(weights_of(url), weights_of(alone))
    # Half of the batches, or half of each, are of another replica than the one that saves.
    one, other = (ModelManifest.load(each).metrics["accuracy"] for each in (url, alone))
    assert one == pytest.approx(other, abs=0.03)


ANIMALS, PLANTS = ["ant", "bee", "cat"], ["ash", "box"]


def lookup(words=ANIMALS, **more):
    return keras.layers.StringLookup(vocabulary=words, **more)


def embedding(name, rows=4):
    return keras.layers.Embedding(rows, 2, name=name)


def text_vectorization(words):
    return keras.layers.TextVectorization(output_sequence_length=3, vocabulary=words)


def functional(build, *names):
    """A model of the outputs that ``build`` makes of an input of strings for each name."""
    inputs = [keras.Input((3,), dtype="string", name=name) for name in names]
    return keras.Model(inputs, build(*inputs))


class Subclassed(keras.Model):
    """A model of which it is not known how its layers are connected."""

    def __init__(self):
        super().__init__()
        self.words = lookup()
        self.table = embedding("table")
        self.top = keras.layers.Dense(2, name="top")

    def call(self, x):
        return self.top(self.table(self.words(x)))


def subclassed():
    model = Subclassed()
    model(np.array([["ant"]]))
    return model


def shared():
    table = embedding("table")
    return functional(lambda a, b: [table(lookup()(a)), table(lookup()(b))], "a", "b")


def shared_by_other_words():
    table = embedding("table")
    return functional(lambda a, b: [table(lookup()(a)), table(lookup(PLANTS)(b))], "a", "b")


def nested():
    inner = functional(lambda a: embedding("table")(lookup()(a)), "a")
    return functional(lambda b: keras.layers.Dense(2, name="top")(inner(b)), "b")


@pytest.mark.parametrize(
    ("build", "tables", "others"),
    [
        (lambda: functional(lambda a: embedding("table")(lookup()(a)), "a"), ["table"], []),
        (
            lambda: keras.Sequential(
                [
                    keras.Input((), dtype="string"),
                    text_vectorization(ANIMALS),
                    embedding("table", rows=100),
                ],
                name="model",
            ),
            ["model/table"],
            [],
        ),
        (shared, ["table"], []),
        (nested, ["table"], []),
        (shared_by_other_words, [], ["table"]),
        (subclassed, [], ["subclassed/table"]),
        # The numbers of words are changed, or joined with others.
        (lambda: functional(lambda a: embedding("table", 9)(lookup()(a) + 1), "a"), [], ["table"]),
        (
            lambda: functional(
                lambda a, b: keras.layers.Dense(2, name="top")(
                    keras.layers.Concatenate()(
                        [lookup(output_mode="multi_hot")(a), lookup(output_mode="multi_hot")(b)]
                    )
                ),
                "a",
                "b",
            ),
            [],
            ["top"],
        ),
        # No words: the numbers of a hash.
        (
            lambda: functional(lambda a: embedding("t")(keras.layers.Hashing(4)(a)), "a"),
            [],
            [],
        ),
    ],
)
def test_which_variables_depend_on_a_vocabulary(build, tables, others):
    keras.utils.clear_session()
    found = vocabularies_of(build())
    assert [path.rpartition("/")[0] for path in found.tables] == tables
    assert sorted({path.rpartition("/")[0] for path in found.others}) == others
    assert Vocabularies.from_json(found.to_json()) == found
    for path in found.tables:
        [words] = found.of(path)
        assert words[-3:] == ANIMALS


def variables(shapes, words=(), tables=(), others=(), ambiguous=()):
    """Variables of these shapes, of which some depend on one vocabulary."""
    return Variables(
        shapes=shapes,
        places={path: place for place, path in enumerate(shapes)},
        ambiguous=frozenset(ambiguous),
        vocabularies=Vocabularies(
            words=[words], tables=dict.fromkeys(tables, 0), others={each: [0] for each in others}
        ),
    )


def test_rows_of_several_unknown_words_are_taken_in_turn():
    old = variables({"t": (4, 2)}, ["[UNK]", "[UNK]", "a", "b"], tables=["t"])
    new = variables({"t": (4, 2)}, ["[UNK]", "b", "c", "[UNK]"], tables=["t"])
    rows = Transfer.plan(old, new).by_word["t"]
    assert (rows.new, rows.old) == ([0, 1, 3], [0, 3, 1])


def test_words_of_another_meaning_in_a_table_of_the_same_shape_change_places():
    old, new = (variables({"t": (2, 2)}, [*words], tables=["t"]) for words in ("ab", "ba"))
    rows = Transfer.plan(old, new).by_word["t"]
    assert dict(zip(rows.new, rows.old, strict=True)) == {0: 1, 1: 0}


@pytest.mark.parametrize(
    ("old", "new", "reason"),
    [
        ({"shapes": {"k": (2,)}}, {"shapes": {"k": (3,)}}, r"k \(3,\): its shape was \(2,\)"),
        ({"shapes": {"j": (2,)}}, {"shapes": {"k": (2,)}}, r"k \(2,\): there is no such path"),
        (
            {"shapes": {"k": (2,)}, "ambiguous": ["k"]},
            {"shapes": {"k": (2,)}},
            "several variables have this path",
        ),
        (
            {"shapes": {"k": (2, 2)}, "words": ["a", "b"], "others": ["k"]},
            {"shapes": {"k": (2, 2)}, "words": ["b", "a"], "others": ["k"]},
            "its vocabulary was another one",
        ),
        (
            {"shapes": {"k": (2, 2)}},
            {"shapes": {"k": (2, 2)}, "words": ["b", "a"], "tables": ["k"]},
            "its vocabulary was another one",
        ),
        (
            {"shapes": {"k": (2, 2)}, "words": ["a", "b"], "tables": ["k"]},
            {"shapes": {"k": (2, 4)}, "words": ["a", "b"], "tables": ["k"]},
            r"its shape was \(2, 2\)",
        ),
    ],
)
def test_a_variable_that_does_not_fit_is_new_for_a_reason(old, new, reason):
    transfer = Transfer.plan(variables(**old), variables(**new))
    assert not transfer.taken
    assert not transfer.by_word
    assert [re.search(reason, each) is not None for each in transfer.new.values()] == [True]
    assert len(transfer.left) == 1


def test_variables_of_the_same_words_are_taken_whole_in_whatever_way_they_depend_on_them():
    given = {"shapes": {"k": (2, 2), "t": (2, 2)}, "words": ["a", "b"]}
    same = [variables(**given, others=["k"], tables=["t"]) for _ in range(2)]
    assert Transfer.plan(*same).taken == {"k": 0, "t": 1}


def test_a_long_list_names_the_first_variables(capsys):
    many = {f"dense_{number}/kernel": (2, 2) for number in range(30)}
    Transfer.plan(variables({}), variables(many)).print("title")
    [title, taken, new] = capsys.readouterr().out.splitlines()
    assert (title, taken) == ("title", "  taken: 0 variables")
    assert new.endswith("dense_7/kernel (2, 2): there is no such path; and 22 more")
