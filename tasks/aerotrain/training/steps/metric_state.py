"""The state of a model's metrics, as values that steps take and return.

Metrics are not variables here: concurrent updates of variables on a parameter server get lost, and
under other strategies each variable would need its own reduction. The sums of several executions
can be added.
"""

from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from aerotrain.training.internals import keras3

#: The state of every metric of a model, in the order of ``MetricState.variables``, followed by the
#: value that ``MetricState.bad_step`` reads.
MetricValues = Sequence[tf.Tensor]


class MetricState:
    """The model's metrics, including the mean loss, as values instead of variables."""

    def __init__(self, model: keras.Model) -> None:
        self.model = model
        metrics = dict.fromkeys([*keras3.own_metrics(model), *model.metrics])
        compiled = keras3.compiled_metrics(model)
        by_batch = keras3.output_loss_metrics(model)
        #: Each single metric, including those of ``compile``.
        self.metrics: list[Any] = [
            metric for each in metrics for metric in (each.metrics if each is compiled else [each])
        ]
        tracked = [keras3.loss_tracker(model), compiled, *by_batch]
        #: Whether the model or its layers have metrics that they update while they are called.
        self.in_call = any(each not in tracked for each in metrics)
        self.variables = [variable for metric in metrics for variable in metric.variables]
        #: The variables of per-output loss metrics, which count each batch once.
        self.by_batch = {id(variable) for metric in by_batch for variable in metric.variables}
        states = [np.asarray(each) for metric in metrics for each in metric.stateless_reset_state()]
        self.zero: list[np.ndarray[Any, Any]] = [*states, np.zeros(2)]

    def scope(self, sums: MetricValues) -> "MetricScope":
        """A scope in which the metrics read and update ``sums`` instead of their variables."""
        return MetricScope(self.pairs(sums))

    def pairs(self, sums: MetricValues) -> list[tuple[Any, tf.Tensor]]:
        """Each of the metrics' variables with its value."""
        return list(zip(self.variables, sums, strict=False))

    def of(self, scope: keras.StatelessScope) -> list[tf.Tensor]:
        """The sums that the metrics left in ``scope``, in the shapes of their variables."""
        return [
            tf.ensure_shape(scope.get_current_value(variable), variable.shape)
            for variable in self.variables
        ]

    def results(self, sums: MetricValues) -> dict[str, float]:
        """The results of ``sums``: a number per metric, under the name that ``fit`` gives it.

        The result of a metric with several numbers, such as one per class, is their mean.
        """
        with self.scope(sums):
            return numbers(self.model.get_metrics_result())

    def names(self) -> list[str]:
        """The names of what is logged for each epoch."""
        return list(self.results(self.zero))

    def measured_names(self) -> list[str] | None:
        """The names of what ``evaluate`` measures; None if the model has its own ``test_step``."""
        if type(self.model).test_step is not keras.Model.test_step:
            return None
        return list(MetricState.results(self, self.zero))

    def bad_step(self, sums: MetricValues) -> int | None:
        """The first step whose loss, or a weight after it, was not finite; None without one.

        Replicas that compute one step together each add the number of their own first bad step, and
        one to the count. A bad value on one replica reaches all by the next step, because they
        share their gradients. So the mean, rounded down, is the first bad step of all.
        """
        numbers, replicas = np.asarray(sums[-1])
        return int(numbers // replicas) if replicas else None


class MetricScope(keras.StatelessScope):  # type: ignore[misc]  # Keras has no types
    """Captures assignments to some variables, and applies all other assignments.

    Layers that are called in it update their own state as usual, such as the statistics of batch
    normalization.
    """

    #: Values by the ``id`` of a weight that the model uses instead of the weight.
    fetched: Mapping[int, tf.Tensor] = MappingProxyType({})

    def __init__(self, state: list[tuple[Any, Any]], *, collect_losses: bool = True) -> None:
        super().__init__(state, collect_losses=collect_losses)

    def add_update(self, update: tuple[Any, Any]) -> None:
        variable, value = update
        if id(variable) in self.state_mapping:
            super().add_update(update)
        else:
            keras3.assign_directly(variable, value)


def flat(results: Mapping[str, Any]) -> dict[str, Any]:
    """``results`` by name; a dict of several results is replaced by its items."""
    parts = [
        (name, flat(value) if isinstance(value, Mapping) else {name: value})
        for name, value in results.items()
    ]
    # Of two results with one name, fit logs that of the metric whose own name sorts last.
    kept = {name: value for _, part in sorted(parts, key=_name) for name, value in part.items()}
    return {name: kept[name] for _, part in parts for name in part}


def numbers(results: Mapping[str, Any]) -> dict[str, float]:
    """A number for each of ``results``; the mean if a result has several, such as per class."""
    return {name: float(np.mean(value)) for name, value in flat(results).items()}


def _name(part: tuple[str, Any]) -> str:
    return part[0]
