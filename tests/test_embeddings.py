"""Embeddings train alike on one replica and on several, whatever the sizes of their batches."""

import pytest

from support import embedding_models
from support.training_fixtures import said_of_shared_steps

pytestmark = pytest.mark.process


@pytest.fixture(scope="module")
def said(tmp_path_factory):
    folder = tmp_path_factory.mktemp("embeddings")
    return said_of_shared_steps("support.embedding_models", embedding_models.MODELS, folder)


@pytest.mark.parametrize("name", embedding_models.MODELS)
def test_two_replicas_train_an_embedding_as_fit_does(said, name):
    assert said[name] == "the same as fit"


def test_two_replicas_train_an_embedding_of_tf_keras_as_its_fit_does(tmp_path):
    pytest.importorskip("tf_keras", reason="the extra 'legacy' is not installed")
    names = ["adam", "clipped by norm", "a table used twice"]
    legacy = {"TF_USE_LEGACY_KERAS": "1"}
    said = said_of_shared_steps("support.embedding_models", names, tmp_path, legacy)
    assert said == dict.fromkeys(names, "the same as fit")
