"""The sharded embedding: the same results as Keras's own, in variables on several ps."""

import json
import re

import keras
import numpy as np
import pytest
import tensorflow as tf

from aerotrain import layers
from aerotrain.contract.errors import ExitCode, SpecError
from aerotrain.contract.training import TrainArguments
from aerotrain.layers import ShardedEmbedding
from aerotrain.training.internals import keras3
from aerotrain.training.model_manifest import ModelManifest
from aerotrain.training.steps.step import TrainStep
from support.training_fixtures import MODELS

pytestmark = pytest.mark.process

ROWS, WIDTH, STEPS = 50, 8, 20
OPTIMIZERS = {
    "Adam": {"learning_rate": 0.01},
    "SGD": {"learning_rate": 0.1, "momentum": 0.9},
    "AdamW": {"learning_rate": 0.01, "global_clipnorm": 0.1},
}


def losses_of(embedding, optimizer, **options):
    """The losses of a model with a table of that class, on ids of which a few are frequent."""
    keras.utils.set_random_seed(3)
    model = keras.Sequential(
        [
            keras.Input((6,), dtype="int32"),
            embedding(ROWS, WIDTH, embeddings_regularizer="l2", mask_zero=True, **options),
            keras.layers.GlobalAveragePooling1D(),
            keras.layers.Dense(4),
        ]
    )
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    made = getattr(keras.optimizers, optimizer)(**OPTIMIZERS[optimizer])
    model.compile(made, loss)
    specs = (keras.KerasTensor((16, 6), "int32"), keras.KerasTensor((16,), "int32"))
    keras3.build_symbolically(model, specs)
    step = TrainStep(model, tf.Variable(0, dtype=tf.int64))
    function = tf.function(step, autograph=False)
    random = np.random.default_rng(0)
    losses = []
    for _ in range(STEPS):
        ids = tf.constant((random.zipf(1.3, (16, 6)) % ROWS).astype("int32"))
        labels = tf.constant(random.integers(0, 4, 16).astype("int32"))
        sums, _ = function(step.metrics.zero, (ids, labels))
        losses.append(step.metrics.results(sums)["loss"])
    return losses


@pytest.mark.parametrize("optimizer", OPTIMIZERS)
def test_a_sharded_embedding_trains_as_the_embedding_of_keras(optimizer):
    theirs = losses_of(keras.layers.Embedding, optimizer)
    ours = losses_of(ShardedEmbedding, optimizer, shards=3)
    np.testing.assert_allclose(ours, theirs, rtol=1e-5)


def test_row_r_is_in_shard_r_modulo_the_number_of_shards():
    keras.utils.set_random_seed(1)
    whole = keras.layers.Embedding(7, 2)
    whole.build()
    keras.utils.set_random_seed(1)
    sharded = ShardedEmbedding(7, 2, shards=3)
    sharded.build()
    table = whole.get_weights()[0]
    for shard, rows in enumerate(sharded.get_weights()):
        np.testing.assert_array_equal(rows, table[shard::3])
    ids = np.array([[0, 6, 3], [5, 5, 1]], "int64")
    np.testing.assert_array_equal(sharded(ids), table[ids])


def test_a_sharded_embedding_is_saved_and_loaded_with_all_its_arguments():
    layer = ShardedEmbedding(7, 2, "zeros", "l2", mask_zero=True, shards=3, name="table")
    again = keras.saving.deserialize_keras_object(keras.saving.serialize_keras_object(layer))
    assert again.get_config() == layer.get_config()


def test_each_shard_of_a_large_table_has_its_own_random_values(monkeypatch):
    monkeypatch.setattr(layers, "WHOLE_BYTES", 64)
    keras.utils.set_random_seed(1)
    for initializer in ("uniform", keras.initializers.RandomNormal(0.0, 0.05, seed=5)):
        layer = ShardedEmbedding(400, 4, initializer, shards=4)
        layer.build()
        shards = layer.get_weights()
        assert {each.shape for each in shards} == {(100, 4)}
        assert len({each.tobytes() for each in shards}) == 4
        assert np.abs(np.mean(shards)) < 0.01


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"shards": 8}, "7 rows cannot have 8 shards; choose from 1 to 7"),
        ({"shards": 0}, "cannot have 0 shards"),
        ({"embeddings_regularizer": "orthogonal_regularizer"}, "needs the table whole; use L1"),
        ({"embeddings_constraint": "max_norm"}, "embeddings_constraint"),
    ],
    ids=str,
)
def test_options_without_meaning_for_a_sharded_table_are_refused(options, message):
    with pytest.raises(ValueError, match=message):
        ShardedEmbedding(7, 2, **options)


def test_a_large_table_whose_values_depend_on_its_shape_is_refused(monkeypatch):
    monkeypatch.setattr(layers, "WHOLE_BYTES", 64)
    with pytest.raises(ValueError, match=r"GlorotUniform needs the table whole.*use 'uniform'"):
        ShardedEmbedding(400, 4, "glorot_uniform").build()


def test_a_partitioner_is_refused_with_an_alternative():
    with pytest.raises(SpecError, match="ShardedEmbedding"):
        TrainArguments.from_dict({"model": "m", "data": "d", "variable_partitioner": "min_size"})


def test_two_parameter_servers_hold_the_shards_of_one_table(digits):
    with digits.cluster("shards", ps=2, model="sharded", code=MODELS, epochs=6) as processes:
        said = processes["chief"].communicate(timeout=120)[0]
        assert processes["chief"].returncode == ExitCode.OK, said
    held = re.findall(r"shard \S*embeddings_(\d) on /job:ps/replica:0/task:(\d)", said)
    assert sorted(shard for shard, _ in held) == ["0", "1", "2", "3"], said
    assert {ps for _, ps in held} == {"0", "1"}
    result = digits.folder / "store/runs/shards/train/result.json"
    trained = ModelManifest.load(json.loads(result.read_text())["value"])
    assert trained.metrics["accuracy"] > 0.9
