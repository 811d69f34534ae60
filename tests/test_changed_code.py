"""What was trained by some code is not taken for the result of other code."""

import importlib
import json
import sys

import pytest

from aerotrain.contract.errors import FinalError
from aerotrain.evaluation import evaluate
from aerotrain.serving import export
from aerotrain.store import MANIFEST, Manifest, open_store
from aerotrain.training.checkpoints.retention import complete_checkpoints
from aerotrain.training.model_manifest import ModelManifest
from aerotrain.training.train import run

pytestmark = pytest.mark.process

MODULE = """
import keras
import tensorflow as tf
import edited_scale

def build_model(hparams):
    model = keras.Sequential([keras.layers.Flatten(), keras.layers.Dense(10)])
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile("sgd", loss, metrics=["accuracy"])
    return model

def transform(features):
    return tf.cast(features["image"], tf.float32) / edited_scale.LARGEST, features["label"]

def callbacks(hparams):
    def fail(epoch, logs):
        if epoch == hparams["fails_at"]:
            raise KeyError("a mistake")
    return [keras.callbacks.LambdaCallback(on_epoch_begin=fail)]
"""
SIBLING = "LARGEST = 16\n"

#: Edits: the file, what is replaced, by what.
RELEVANT = {
    "loss": ("edited.py", "from_logits=True", "from_logits=False"),
    "transform": ("edited.py", 'features["label"]', '9 - features["label"]'),
    "callback": ("edited.py", "fail(epoch, logs):", "fail(epoch, logs):\n        return"),
    "sibling": ("edited_scale.py", "16", "255"),
}
IRRELEVANT = {
    "comment": ("edited.py", "import keras\n", "import keras  # version 3\n\n"),
    "other": ("other.py", "1", "2"),
    "data": ("words.txt", "1", "2"),
}
EDITS = {**RELEVANT, **IRRELEVANT}

STEPS = ("evaluate", "export")


@pytest.fixture
def code(tmp_path, monkeypatch):
    """The folder of a module that a new process has imported, with edits, if some are given."""
    folder = tmp_path / "code"
    folder.mkdir()
    monkeypatch.syspath_prepend(folder)

    def write(*edits):
        texts = {"edited.py": MODULE, "edited_scale.py": SIBLING, "other.py": "1", "words.txt": "1"}
        for edit in edits:
            file, old, new = EDITS[edit]
            assert old in texts[file]
            texts[file] = texts[file].replace(old, new)
        for file, text in texts.items():
            (folder / file).write_text(text)
        for name in ("edited", "edited_scale", "other"):
            sys.modules.pop(name, None)
        importlib.invalidate_caches()
        for cached in folder.glob("__pycache__/*"):
            cached.unlink()  # an edit of the same length within the same second
        return folder

    yield write
    write()


@pytest.fixture
def train(digits, code):
    def train(name, *edits, epochs=2, fails_at=1, **arguments):
        code(*edits)
        replica = digits.replica(
            "train",
            name,
            model="edited",
            data=digits.data,
            epochs=epochs,
            checkpoint_interval=1e-6,
            hparams={"fails_at": fails_at},
            **arguments,
        )
        try:
            return run(replica)
        finally:
            replica.lease.release()

    return train


def test_a_training_in_progress_continues_with_its_own_code_only(digits, train, capfd):
    with pytest.raises(KeyError, match="a mistake"):
        train("mended")
    store = open_store(f"{digits.store}/runs/mended/train")
    newest = complete_checkpoints(store)[-1]
    url = f"{store.url}/checkpoints/{newest}"
    for edit, (file, _, _) in RELEVANT.items():
        with pytest.raises(FinalError, match=f"^{file} changed after the checkpoint {url}"):
            train("mended", edit)
    with pytest.raises(KeyError, match="a mistake"):
        train("mended", *IRRELEVANT)
    assert f"resuming from the checkpoint of step {newest.step}" in capfd.readouterr().out
    # The way that the refusal names: other code begins with these weights on purpose.
    model = ModelManifest.load(train("after", "callback", epochs=1, start_from=url))
    assert model.started_from["checkpoint"] == url
    assert model.step == newest.step


def test_a_training_that_ended_is_not_taken_for_that_of_other_code(train):
    model = train("ended", fails_at=-1)
    folder, _, key = model.rpartition("/")
    written = open_store(folder).get(key)
    trained = ModelManifest.load(model)
    assert [*trained.recipe["modules"]] == ["edited.py", "edited_scale.py"]
    for epochs in (2, 3):
        with pytest.raises(FinalError, match=r"^edited\.py changed after the checkpoint"):
            train("ended", "loss", epochs=epochs, fails_at=-1)
    with pytest.raises(FinalError, match="has 80 steps, of which epochs=1 are 40; set epochs to 2"):
        train("ended", epochs=1, fails_at=-1)
    assert open_store(folder).get(key) == written
    train("ended", *IRRELEVANT, fails_at=-1)
    assert ModelManifest.load(model) == trained


def test_other_code_may_evaluate_and_export_a_model_and_says_so(digits, train, code, capfd):
    model = train("measured", fails_at=-1, epochs=1)
    replicas = [digits.replica(each, "measured", model=model, data=digits.data) for each in STEPS]
    before = export.run(replicas[1])
    assert "after this model was trained" not in capfd.readouterr().out

    code("transform")
    said = "edited.py changed after this model was trained"
    evaluate.run(replicas[0])
    document = json.loads(open_store(replicas[0].job.prefix).get("metrics.json"))
    assert document["metrics"]["accuracy"] < 0.5
    assert any(said in each for each in document["warnings"])
    after = export.run(replicas[1])
    assert after != before
    assert said in Manifest.from_json(open_store(after).get(MANIFEST)).about["warning"]
