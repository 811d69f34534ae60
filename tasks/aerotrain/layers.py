"""Keras layers for users' models: an embedding whose table is sharded over several variables.

A variable of a Keras layer cannot be partitioned, but several variables can be on several ps.
"""

from typing import Any

import keras
import tensorflow as tf

#: A table up to this size in bytes is initialized whole and then divided, so that it has exactly
#: the initial values of ``keras.layers.Embedding``. Each shard of a larger one has its own seed.
WHOLE_BYTES = 256 * 2**20

#: Initializers whose values do not depend on the shape, so that shards can be drawn separately.
_BY_ELEMENT = (
    keras.initializers.Constant,
    keras.initializers.Ones,
    keras.initializers.RandomNormal,
    keras.initializers.RandomUniform,
    keras.initializers.TruncatedNormal,
    keras.initializers.Zeros,
)

#: Regularizers that are additive over the shards of a table.
_ADDITIVE = (keras.regularizers.L1, keras.regularizers.L2, keras.regularizers.L1L2)


@keras.saving.register_keras_serializable("aerotrain")
class ShardedEmbedding(keras.layers.Layer):  # type: ignore[misc]
    """``keras.layers.Embedding``, with the same results, in ``shards`` variables.

    Row ``r`` of the table is row ``r // shards`` of variable ``r % shards``, which spreads frequent
    rows, adjacent in most vocabularies, evenly. Under ``parameter_server`` the variables are
    placed on the ps in turn. ``shards`` is part of the model, not of the cluster:
    a checkpoint fits any number of ps; more than ``shards`` of them hold nothing.

    An optimizer's ``clipnorm`` clips each variable, and so each shard, separately: use
    ``global_clipnorm``, which does not depend on sharding.

    Takes ids of any integer dtype and shape ``(...)``, and returns ``(..., output_dim)``.

    Raises:
        ValueError: an argument is not supported for a sharded table.
    """

    def __init__(
        self,
        input_dim: int,
        output_dim: int,
        embeddings_initializer: Any = "uniform",
        embeddings_regularizer: Any = None,
        mask_zero: bool = False,
        shards: int = 4,
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        if not 1 <= shards <= input_dim:
            raise ValueError(
                f"ShardedEmbedding of {input_dim} rows cannot have {shards} shards; "
                f"choose from 1 to {input_dim}"
            )
        self.input_dim = input_dim
        self.output_dim = output_dim
        self.embeddings_initializer = keras.initializers.get(embeddings_initializer)
        self.embeddings_regularizer = keras.regularizers.get(embeddings_regularizer)
        if not isinstance(self.embeddings_regularizer, (*_ADDITIVE, type(None))):
            raise ValueError(
                f"embeddings_regularizer {type(self.embeddings_regularizer).__name__} needs "
                "the table whole; use L1, L2 or L1L2, or keras.layers.Embedding"
            )
        self.mask_zero = mask_zero
        self.supports_masking = mask_zero
        self.autocast = False
        self.shards = shards

    def build(self, input_shape: Any = None) -> None:
        """Create the variables, one for each shard."""
        self._tables = [
            self.add_weight(
                shape=(len(range(shard, self.input_dim, self.shards)), self.output_dim),
                initializer=self._initializer_of(shard),
                name=f"embeddings_{shard}",
                regularizer=self.embeddings_regularizer,
            )
            for shard in range(self.shards)
        ]
        self.built = True

    def _initializer_of(self, shard: int) -> Any:
        initializer = self.embeddings_initializer
        whole = (self.input_dim, self.output_dim)
        if 4 * self.input_dim * self.output_dim <= WHOLE_BYTES:
            return lambda shape, dtype: initializer(whole, dtype=dtype)[shard :: self.shards]
        if not isinstance(initializer, _BY_ELEMENT):
            raise ValueError(
                f"embeddings_initializer {type(initializer).__name__} needs the table whole, "
                f"and {self.input_dim} x {self.output_dim} is too large; use 'uniform'"
            )
        config = initializer.get_config()
        if isinstance(config.get("seed"), int):
            config["seed"] += shard
        return type(initializer).from_config(config)

    def call(self, inputs: Any) -> Any:
        """Look up the rows of the ids ``inputs``, each on the device of its variable."""
        ids = keras.ops.cast(inputs, "int32") if "int" not in str(inputs.dtype) else inputs
        tables = [table.value for table in self._tables]
        rows = tf.compat.v1.nn.embedding_lookup(tables, ids, partition_strategy="mod")
        return keras.ops.cast(rows, self.compute_dtype)

    def compute_mask(self, inputs: Any, mask: Any = None) -> Any:
        """The mask of ids other than 0, the padding, if ``mask_zero``."""
        return keras.ops.not_equal(inputs, 0) if self.mask_zero else None

    def compute_output_spec(self, inputs: Any) -> keras.KerasTensor:
        """The shape and dtype of the result of ``call``."""
        return keras.KerasTensor((*inputs.shape, self.output_dim), dtype=self.compute_dtype)

    def get_config(self) -> dict[str, Any]:
        """The constructor arguments, for serialization."""
        return super().get_config() | {
            "input_dim": self.input_dim,
            "output_dim": self.output_dim,
            "embeddings_initializer": keras.initializers.serialize(self.embeddings_initializer),
            "embeddings_regularizer": keras.regularizers.serialize(self.embeddings_regularizer),
            "mask_zero": self.mask_zero,
            "shards": self.shards,
        }
