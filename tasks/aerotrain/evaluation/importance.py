"""Permutation importance: how much worse the metric is if the values of one column are shuffled.

L. Breiman, Random Forests, 2001, section 10.
"""

import time
from collections.abc import Callable, Mapping
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from aerotrain.evaluation.gate import Gate
from aerotrain.evaluation.intervals import GROUPS
from aerotrain.evaluation.records import CANDIDATE, Block
from aerotrain.serving.servable import Servable

#: The most records that are looked at, the fewest, and how often a column is shuffled.
_RECORDS, _FEWEST, _ROUNDS = 2000, 50, 3

#: Seconds after which no further column is looked at.
_SECONDS = 20.0

Features = Mapping[str, tf.Tensor]


def importance_of(
    gate: Gate,
    servable: Servable,
    features: Features,
    *,
    batch_size: int,
    clock: Callable[[], float] = time.monotonic,
) -> dict[str, Any] | None:
    """The importance of each column that predictions need, as JSON, the greatest first.

    ``features`` are all columns of the first records, whose targets are of the structure of the
    predictions. Equal records give equal numbers; None if they are too few to tell.
    """
    features = {name: each[:_RECORDS] for name, each in features.items()}
    count = len(next(iter(features.values())))
    if count < _FEWEST:
        return None
    metric, higher_is_better = gate.main_metric
    _, y, weight = keras.utils.unpack_x_y_sample_weight(servable.transform(dict(features)))
    predict = tf.function(servable.predict, reduce_retracing=True)

    def measured(columns: Features) -> float:
        parts = [
            predict({name: each[first : first + batch_size] for name, each in columns.items()})
            for first in range(0, count, batch_size)
        ]
        outputs = [tf.concat([part[name] for part in parts], axis=0) for name in parts[0]]
        block = Block(
            features={},
            groups=np.arange(count) % GROUPS,
            y=y,
            weight=weight,
            predictions={CANDIDATE: tf.nest.pack_sequence_as(y, outputs)},
            added_loss=tf.zeros(count),
        )
        return gate.measured(block, metric)

    begin, own, sign = clock(), measured(features), 1 if higher_is_better else -1
    found: list[dict[str, Any]] = []
    for number, name in enumerate(servable.needed):
        if clock() - begin > _SECONDS:
            break
        random = np.random.default_rng(number)
        orders = [random.permutation(count) for _ in range(_ROUNDS)]
        shuffled = ({**features, name: tf.gather(features[name], order)} for order in orders)
        losses = [sign * (own - measured(each)) for each in shuffled]
        bounds = {"least": min(losses), "most": max(losses)}
        found.append({"column": name, "loss": float(np.mean(losses)), **bounds})
    found.sort(key=lambda each: -each["loss"])
    others = [*servable.needed][len(found) :]
    return {"metric": metric, "value": own, "records": count, "columns": found, "others": others}
