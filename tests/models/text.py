"""Lines of text, praise or complaint; words are hashed, so there is no vocabulary to keep."""

import numpy as np

WORDS = {
    0: ("awful", "broken", "late", "rude", "stale", "torn"),
    1: ("fine", "fresh", "kind", "prompt", "superb", "tidy"),
}
COMMON = ("and", "it", "the", "was", "we", "again", "parcel", "shop", "found", "today")
LENGTH = 12
BUCKETS = 1000


def list_parts():
    return [{"seed": seed} for seed in range(2)]


def read_part(part):
    random = np.random.default_rng(part["seed"])
    for number in range(500):
        label = int(random.integers(2))
        words = [*random.choice(WORDS[label], 2), *random.choice(COMMON, random.integers(2, 10))]
        random.shuffle(words)
        yield f"{part['seed']}-{number}", {"line": " ".join(words), "label": np.int64(label)}


def transform(features):
    import tensorflow as tf

    words = tf.strings.split(tf.strings.lower(features["line"]))
    ids = tf.strings.to_hash_bucket_fast(words, BUCKETS - 1) + 1  # 0 pads a line after its end
    return ids.to_tensor(shape=[None, LENGTH]), features["label"]


def build_model(hparams):
    import keras

    from aerotrain.layers import ShardedEmbedding

    model = keras.Sequential(
        [
            ShardedEmbedding(BUCKETS, 8, mask_zero=True, shards=3),
            keras.layers.GlobalAveragePooling1D(),
            keras.layers.Dense(1, activation="sigmoid"),
        ]
    )
    model.compile(keras.optimizers.Adam(0.02), "binary_crossentropy", metrics=["accuracy"])
    return model
