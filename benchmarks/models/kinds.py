"""Small models of many kinds for the digits of scikit-learn; ``hparams["kind"]`` chooses one."""

import keras
import sharing
import tensorflow as tf
from keras import layers, ops, optimizers

CLASSES, SIDE = 10, 8
CROSS_ENTROPY = keras.losses.SparseCategoricalCrossentropy(from_logits=True)


def transform(features):
    return tf.cast(features["image"], tf.float32) / 16, features["label"]


def build_model(hparams):
    return KINDS[hparams["kind"]]()


def compiled(model, optimizer="sgd"):
    model.compile(optimizer, CROSS_ENTROPY, metrics=["accuracy"])
    return model


def dense(optimizer, *hidden, kind=keras.Sequential):
    last = layers.Dense(CLASSES, kernel_regularizer="l2")
    model = kind([layers.Flatten(), layers.Dense(32, activation="relu"), *hidden, last])
    return compiled(model, optimizer)


class OwnStep(sharing.OwnStep, keras.Sequential):
    """Layers that a ``train_step`` of their own trains."""


class Tokens(layers.Layer):
    """The pixels of an image as a sequence of 17 different tokens."""

    def call(self, x):
        return ops.cast(ops.reshape(x, (-1, SIDE * SIDE)) * 16, "int32")


class TokensAndPositions(layers.Layer):
    """The sum of the embeddings of tokens and of their positions."""

    def __init__(self):
        super().__init__()
        self.tokens = layers.Embedding(17, 16)
        self.positions = layers.Embedding(SIDE * SIDE, 16)

    def call(self, x):
        return self.tokens(x) + self.positions(ops.arange(SIDE * SIDE))


def pooled(image, x):
    logits = layers.Dense(CLASSES)(layers.GlobalAveragePooling1D()(x))
    return compiled(keras.Model(image, logits), optimizers.Adam(0.01))


def transformer():
    """One block of self-attention over the pixels, with learned positions."""
    image = keras.Input((SIDE, SIDE))
    x = TokensAndPositions()(Tokens()(image))
    x = layers.LayerNormalization()(x + layers.MultiHeadAttention(2, 8)(x, x))
    x = layers.LayerNormalization()(x + layers.Dense(16)(layers.Dense(32, "gelu")(x)))
    return pooled(image, x)


def kerashub_transformer():
    """A block of KerasHub's layers over the pixels."""
    import keras_hub

    image = keras.Input((SIDE, SIDE))
    x = keras_hub.layers.TokenAndPositionEmbedding(17, SIDE * SIDE, 16)(Tokens()(image))
    return pooled(image, keras_hub.layers.TransformerEncoder(32, 2)(x))


def mobilenet():
    """MobileNetV3 without weights, on images of 32 x 32."""
    image = keras.Input((SIDE, SIDE))
    x = layers.UpSampling2D(4)(layers.Reshape((SIDE, SIDE, 1))(image))
    x = layers.Concatenate()([x, x, x])
    network = keras.applications.MobileNetV3Small(
        input_shape=(4 * SIDE, 4 * SIDE, 3),
        alpha=0.35,
        minimalistic=True,
        weights=None,
        include_top=False,
        include_preprocessing=False,
        pooling="avg",
    )
    model = keras.Model(image, layers.Dense(CLASSES)(network(x)))
    return compiled(model, optimizers.SGD(0.01))


def lora():
    """LoRA on a frozen embedding and a frozen dense layer; the last layer is trained whole."""
    embedding, hidden = layers.Embedding(17, 8), layers.Dense(32, activation="relu")
    others = [Tokens(), embedding, layers.Flatten(), hidden, layers.Dense(CLASSES)]
    model = keras.Sequential([keras.Input((SIDE, SIDE)), *others])
    embedding.enable_lora(2)
    hidden.enable_lora(4)
    return compiled(model, optimizers.Adam(0.01))


def frozen():
    """A base whose layers, one a batch normalization, are not trained."""
    model = dense("adam", layers.BatchNormalization(), layers.Dense(16, activation="relu"))
    for layer in model.layers[1:3]:
        layer.trainable = False
    return compiled(model, optimizers.Adam(0.01))


def large():
    """A model of 200 MB."""
    hidden = [layers.Dense(7000, activation="relu"), layers.Dense(7000)]
    return compiled(keras.Sequential([layers.Flatten(), *hidden, layers.Dense(10)]))


KINDS = {
    "plain": lambda: dense(optimizers.Adam(0.01, clipnorm=0.5, weight_decay=0.01)),
    "batch normalization": lambda: dense("sgd", layers.BatchNormalization()),
    "dropout": lambda: dense("sgd", layers.Dropout(0.3)),
    "mobilenet": mobilenet,
    "transformer": transformer,
    "kerashub": kerashub_transformer,
    "lora": lora,
    "frozen": frozen,
    "own train_step": lambda: dense("sgd", kind=OwnStep),
    "ftrl": lambda: dense(optimizers.Ftrl(0.1)),
    "lamb": lambda: dense(optimizers.Lamb(0.01)),
    "muon": lambda: dense(optimizers.Muon(0.01, exclude_layers=["dense_1"])),
    "averaged weights": lambda: dense(optimizers.SGD(0.1, use_ema=True, ema_momentum=0.9)),
    "accumulating": lambda: dense(optimizers.Adam(0.01, gradient_accumulation_steps=4)),
    "large": large,
}
