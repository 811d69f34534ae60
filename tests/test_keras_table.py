"""Every loss and metric of Keras, and ways of a user's own, where batches are shared."""

import itertools
import json
from pathlib import Path

import pytest
from benchmarks import keras_table

from support.training_fixtures import start_python

ROOT = Path(__file__).parent.parent

pytestmark = [pytest.mark.process, pytest.mark.timeout(900)]

#: What needs a whole batch, and is named before the first step.
WHOLE = {
    "Circle",
    "Dice",
    "Dice masked",
    "Tversky",
    "Tversky masked",
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
#: Losses with sample weights that an evaluation measures by batches; a function has no reduction.
BY_BATCHES = {
    head.row
    for head in keras_table.losses_of("mixed")
    if head.masked
    or head.row in {*WHOLE, "ignore_class"}
    or getattr(head.make(), "reduction", "") in ("sum", "mean_with_sample_weight")
}
#: What replicas cannot do.
REFUSED = {"averages that overwrite weights", "train_step that creates variables"}


@pytest.fixture(scope="module")
def cells(tmp_path_factory):
    # The table sets up devices of its own, and nothing may have run before.
    words, folder = ["-m", "benchmarks.keras_table", "--quick"], tmp_path_factory.mktemp("table")
    with start_python(words, folder) as process:
        output = process.communicate(timeout=800)[0]
        assert process.returncode == 0, output[-4000:]
    return [json.loads(line) for line in output.splitlines() if line.startswith('{"kind"')]


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
def test_a_shared_batch_counts_as_in_fit_or_is_named_before_the_first_step(cells, kind, setting):
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
            by_batches = row in (BY_BATCHES if kind == "loss" else {"largest_distance"})
            assert outcome == ("said" if by_batches else "equal"), f"{row}: {outcome}, {detail}"
        elif row in WHOLE and (kind, row) != ("metric", "mean_distance"):
            assert outcome == "said", f"{row}: {outcome}, {detail}"
        else:
            assert outcome == "equal", f"{row}: {outcome}, {detail}"


def test_every_loss_and_metric_of_keras_has_a_row():
    assert not keras_table.missing()


def test_the_page_shows_the_table():
    page = (ROOT / "docs" / "models.md").read_text()
    assert "\n".join(keras_table.page(json.loads(keras_table.RESULTS.read_text()))) in page
