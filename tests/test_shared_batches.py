"""Two replicas share uneven batches, and train embeddings and compute metrics as ``fit`` does."""

import pytest
import tensorflow as tf

from aerotrain.contract.errors import FinalError
from aerotrain.training.model.error_messages import errors_translated
from aerotrain.training.steps.microbatches import TOO_MANY
from support import embedding_models, metric_models
from support.training_fixtures import said_of_shared_steps

pytestmark = pytest.mark.process

MODELS = [
    *(f"embedding_models: {name}" for name in embedding_models.MODELS),
    *(f"metric_models: {name}" for name in metric_models.MODELS),
]


@pytest.fixture(scope="module")
def said(tmp_path_factory):
    return said_of_shared_steps(MODELS, tmp_path_factory.mktemp("shared"))


@pytest.mark.parametrize("name", MODELS)
def test_two_replicas_train_a_model_as_fit_does(said, name):
    assert said[name] == "the same as fit"


def test_a_step_with_more_slices_than_a_message_holds_ends_with_a_sentence(tmp_path):
    words = (
        f"2 root error(s) found.\n (0) {TOO_MANY} 9 slices of 4 numbers; use smaller batches\n (1)"
    )
    translated = errors_translated(None, None, "", "train", tmp_path)  # no record is read
    with pytest.raises(FinalError, match=f"^{TOO_MANY} 9 slices"), translated:
        raise tf.errors.InvalidArgumentError(None, None, words)
