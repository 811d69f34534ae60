"""Every loss and metric of Keras, and ways of a user's own, where batches are shared."""

import itertools
import json
from pathlib import Path
from unittest import mock

import pytest
from benchmarks import keras_table

from support.training_fixtures import start_python

ROOT = Path(__file__).parent.parent

pytestmark = [pytest.mark.process, pytest.mark.timeout(900)]

#: Of losses and of metrics that Keras computes in the same way, one. The whole table has all.
LOSSES = ["BinaryCrossentropy", "CTC", "CategoricalCrossentropy", "Circle", "Dice", "Hinge"]
LOSSES += ["MeanSquaredError", "SparseCategoricalCrossentropy"]
METRICS = ["AUC", "BinaryAccuracy", "ConcordanceCorrelation", "F1Score", "MeanIoU", "Precision"]
METRICS += ["R2Score", "RootMeanSquaredError", "SparseTopKCategoricalAccuracy"]

#: Prints the cells of these rows.
TABLE = f"""
from benchmarks import keras_table as table
table.LOSSES = {{name: table.LOSSES[name] for name in {LOSSES}}}
table.METRICS = {{name: table.METRICS[name] for name in {METRICS}}}
table.main()
"""

#: What needs a whole batch, and is named before the first step.
WHOLE = {
    "Circle",
    "Dice",
    "Dice masked",
    "mean_distance",  # a number for a batch, which Keras multiplies by the weight of each record
    "largest_distance",
    "a loss of the whole batch",
    "a mean over known targets",
    "losses of a whole batch added by layers",
    "train_step of a sum",
    "compute_loss, the root of a mean",
    "compute_loss with negatives in the batch",
    "state of a layer",
}
#: What replicas cannot do.
REFUSED = {"averages that overwrite weights", "train_step that creates variables"}


@pytest.fixture(scope="module")
def cells(tmp_path_factory):
    # The table sets up devices of its own, and nothing may have run before.
    with start_python(["-c", TABLE, "--quick"], tmp_path_factory.mktemp("table")) as process:
        output = process.communicate(timeout=800)[0]
        assert process.returncode == 0, output[-4000:]
    return [json.loads(line) for line in output.splitlines() if line.startswith('{"kind"')]


@pytest.fixture(scope="module")
def by_batches():
    """Losses with sample weights that an evaluation measures by batches.

    A function has no reduction.
    """
    rows = {name: keras_table.LOSSES[name] for name in LOSSES}
    with mock.patch.object(keras_table, "LOSSES", rows):
        heads = keras_table.losses_of("mixed")
    return {
        head.row
        for head in heads
        if head.masked
        or head.row in {*WHOLE, "ignore_class"}
        or getattr(head.make(), "reduction", "") in ("sum", "mean_with_sample_weight")
    }


@pytest.mark.parametrize(
    ("kind", "setting"),
    [
        *itertools.product(("loss", "metric"), ("gradient_accumulation_steps", "mirrored")),
        ("model", "mirrored"),
        ("model", "central_storage"),
        ("loss", "evaluate"),
        ("metric", "evaluate"),
    ],
)
def test_a_shared_batch_counts_as_in_fit_or_is_named_before_the_first_step(
    cells, by_batches, kind, setting
):
    found = {
        cell["row"].partition(" (")[0]: (cell["outcome"], cell["detail"])
        for cell in cells
        if (cell["kind"], cell["setting"]) == (kind, setting)
    }
    assert found
    for row, (outcome, detail) in found.items():
        if row in REFUSED and setting != "evaluate":
            assert outcome == "refused", f"{row}: {outcome}, {detail}"
        elif setting == "evaluate":
            named = row in (by_batches if kind == "loss" else {"largest_distance"})
            assert outcome == ("said" if named else "equal"), f"{row}: {outcome}, {detail}"
        elif row in WHOLE and (kind, row) != ("metric", "mean_distance"):
            assert outcome == "said", f"{row}: {outcome}, {detail}"
        else:
            assert outcome == "equal", f"{row}: {outcome}, {detail}"


def test_every_loss_and_metric_of_keras_has_a_row():
    assert not keras_table.missing()


def test_the_page_shows_the_table():
    page = (ROOT / "docs" / "models.md").read_text()
    assert "\n".join(keras_table.page(json.loads(keras_table.RESULTS.read_text()))) in page
