"""The states of metrics for many cells at once; a cell is one group of the records of one slice.

States of cells are added, so the state of a metric must be a sum over records. Others, such as an
F1 score that a function computes of a batch, are measured by batches, as Keras's ``evaluate`` does.
"""

import inspect
import re
from collections.abc import Callable, Mapping, Sequence
from functools import cache, partial
from itertools import chain
from typing import Any

import keras
import numpy as np
import tensorflow as tf
from numpy.typing import NDArray

from aerotrain.contract.errors import FinalError, nearest
from aerotrain.contract.gate import Rule
from aerotrain.evaluation.records import Records
from aerotrain.training.internals import keras3, tensorflow2
from aerotrain.training.steps.state import MetricState, flat

#: States by variable, each ``(cells, *shape)``.
States = list[NDArray[Any]]

#: The names of metrics, in their order; None are all of them.
Names = tuple[str, ...] | None

Shape = tuple[int, ...]

#: The records by which it is seen what a metric takes.
_FEW = 101

#: The records by which it is seen whether a metric is a sum over records, those of a batch, and
#: those among which they are chosen.
_TRIED, _BATCH, _AMONG = 128, 32, 2**16

#: The names of Keras's classes of metrics whose values are from 0 to 1.
_RATES = re.compile(r"\w*Accuracy$|AUC|F\w+Score|Precision|Recall|Sensitivity|Specificity")

#: By kinds of metrics, the classes of which there must be records, each of which is in one of two
#: sums, as it is predicted.
_CLASS, _OTHERS = ("true_positives", "false_negatives"), ("false_positives", "true_negatives")
_NEEDED = (
    (
        (
            keras.metrics.AUC,
            keras.metrics.PrecisionAtRecall,
            keras.metrics.RecallAtPrecision,
            keras.metrics.SensitivityAtSpecificity,
            keras.metrics.SpecificityAtSensitivity,
        ),
        (_CLASS, _OTHERS),
    ),
    ((keras.metrics.Recall, keras.metrics.FBetaScore), (_CLASS,)),
)


class CellMetrics:
    """The metrics of a compiled model, and the others that rules name.

    ``extra`` maps the name of each other metric to the metric and the output that it measures.
    """

    def __init__(
        self, model: keras.Model, extra: Mapping[str, tuple[keras.metrics.Metric, str | None]]
    ) -> None:
        self._compiled = MetricState(model)
        self._extra = extra
        self._outputs = output_names(model)
        self._by_name = keras3.compiled_by_name(model) | {n: m for n, (m, _) in extra.items()}
        #: The state of no records, once ``build`` was called.
        self.zero: list[NDArray[Any]] = []
        # A function for each ``names``: TensorFlow warns of one that is traced again for others.
        self._functions = cache(self._functions_of)
        self._measure = tf.function(self._updated, autograph=False, reduce_retracing=True)

    def _functions_of(self, names: Names) -> tuple[Callable[..., Any], Callable[..., Any]]:
        """What computes the states of cells, and what computes the results of states."""
        states, results = (
            tf.function(partial(each, names=names), autograph=False, reduce_retracing=True)
            for each in (self._states_of, self._results_of)
        )
        return states, results

    def build(self, y: Any, y_pred: Any, weight: Any) -> None:
        """Create the variables of all metrics, some of which have the shape of an output."""

        def few(each: Any) -> Any:
            return None if each is None else each[:_FEW]

        for name, (metric, output) in self._extra.items():
            given = self._of_output(output, *tf.nest.map_structure(few, [y, y_pred, weight]))
            try:
                metric.update_state(*given)
            except (ValueError, TypeError, tf.errors.InvalidArgumentError) as error:
                whole = self._of_output(output, y, y_pred)
                shapes = " and predictions ".join(str(tuple(each.shape)) for each in whole)
                raise FinalError(
                    f"{name!r} cannot be computed of targets {shapes}: {error}; compile the model "
                    "with it to see what it takes"
                ) from error
            metric.reset_state()
        others = [v for m, _ in self._extra.values() for v in m.stateless_reset_state()]
        self.zero = [*self._compiled.zero[:-1], *map(np.asarray, others)]

    def _of_output(self, output: str | None, *structures: Any) -> list[Any]:
        return [chosen(each, output, self._outputs) for each in structures]

    def no_sums(self, records: Records) -> list[str]:
        """The names of the metrics that are no sums over records, as some of these show.

        The sum of the states of single records has another result than that of batches, for the
        predictions, or for those of other records, as few would show it if all are right.
        """
        places = _unlike(records)
        count = len(places)
        x, y, y_pred, weight, added, masks = tf.nest.map_structure(
            lambda each: None if each is None else tf.gather(each, places), records
        )
        found: dict[str, None] = {}
        for turn in (0, 1):
            rolled = tf.nest.map_structure(partial(tf.roll, shift=turn, axis=0), (y_pred, masks))
            few = x, y, rolled[0], weight, added, rolled[1]
            singly, in_batches = (
                [each.sum(axis=0) for each in self.states(few, np.array(ends), None)]
                for ends in (range(1, count + 1), [*range(_BATCH, count, _BATCH), count])
            )
            pairs = [np.stack(pair) for pair in zip(singly, in_batches, strict=True)]
            for name, (one, other) in self.results(pairs, None).items():
                if not np.isclose(one, other, rtol=1e-3, atol=1e-6, equal_nan=True):
                    found[name] = None
        return list(found)

    def measure(self, states: States, records: Records, batch_size: int) -> States:
        """``states`` after each batch of ``records``, as Keras's ``evaluate`` updates them."""
        for first in range(0, len(records[4]), batch_size):
            batch = _rows(records, slice(first, first + batch_size))
            states = self._measure(states, batch)
        return states

    def zeros(self, names: Names) -> list[NDArray[Any]]:
        """The state of no records, of those metrics."""
        return [self.zero[place] for place in self._places(names)]

    def states(self, records: Records, ends: NDArray[np.int64], names: Names) -> States:
        """The state of each cell. Its records end before ``ends``, where those of the next begin.

        ``records`` are ``x``, ``y``, ``y_pred``, ``weight``, ``added_loss`` and ``masks`` of a
        block, structures of ``(records, …)``; ``x`` and ``weight`` may be None.
        """
        states = self._functions(names)[0](records, tf.constant(ends))
        return [np.asarray(each) for each in states]

    def results(self, states: States, names: Names) -> dict[str, NDArray[np.float64]]:
        """The results of ``n`` states, by the name of the metric: ``(n,)`` each."""
        given = self._functions(names)[1]([tf.constant(each) for each in states])
        return {name: np.asarray(each, np.float64) for name, each in given.items()}

    def _variables(self) -> list[Any]:
        """What a state has the values of."""
        others = [each for metric, _ in self._extra.values() for each in metric.variables]
        return [*self._compiled.variables, *others]

    def _places(self, names: Names) -> list[int]:
        """The places of those metrics' variables among all."""
        variables = self._variables()
        if names is None or not self._by_name.keys() >= set(names):  # such as the loss
            return list(range(len(variables)))
        read = {id(each) for name in names for each in self._by_name[name].variables}
        return [place for place, each in enumerate(variables) if id(each) in read]

    def _states_of(self, records: Records, ends: tf.Tensor, names: Names) -> list[tf.Tensor]:
        places = self._places(names)
        starts = tf.concat([[tf.constant(0, ends.dtype)], ends[:-1]], axis=0)

        def of_cell(place: tuple[tf.Tensor, tf.Tensor]) -> list[tf.Tensor]:
            state = self._state(_rows(records, slice(*place)), place[1] - place[0])
            # What is not returned is not computed.
            return [state[each] for each in places]

        types = [tf.TensorSpec(each.shape, each.dtype) for each in self.zeros(names)]
        return tf.map_fn(of_cell, (starts, ends), fn_output_signature=types)

    def _state(self, cell: Records, records: tf.Tensor) -> list[tf.Tensor]:
        """The state of one cell of so many records."""
        states = self._updated([tf.constant(each) for each in self.zero], cell)
        variables = self._compiled.variables
        return [
            # Keras counts an update of the losses of outputs as one, whatever its records are.
            each * tf.cast(records, each.dtype) if id(variable) in self._compiled.by_batch else each
            for variable, each in zip(variables, states, strict=False)
        ] + states[len(variables) :]

    def _updated(self, states: Sequence[Any], records: Records) -> list[tf.Tensor]:
        """``states`` after Keras's update for a batch."""
        x, y, y_pred, weight, added_loss, masks = records
        keras3.set_masks(y_pred, masks)
        compiled, model = self._compiled, self._compiled.model
        scope = compiled.scope(states)
        with scope:
            added = [tf.reduce_mean(added_loss)]
            loss = keras3.compute_loss(model, x, y, y_pred, weight, added, training=False)
            keras3.track_loss(model, loss, tf.shape(added_loss)[0])
            model.compute_metrics(x, y, y_pred, sample_weight=weight)
        after = compiled.of(scope)
        for metric, output in self._extra.values():
            begin = states[len(after) : len(after) + len(metric.variables)]
            arguments = self._of_output(output, y, y_pred, weight)
            after += metric.stateless_update_state(list(begin), *arguments)
        return after

    def is_rate(self, name: str) -> bool:
        """Whether the values of the metric of that name are known to be from 0 to 1."""
        kinds = type(self._by_name.get(name)).__mro__
        return any(e.__module__.startswith("keras.") and _RATES.match(e.__name__) for e in kinds)

    def undefined(self, states: States, names: Names) -> frozenset[str]:
        """Those metrics that the records of one state do not determine, whatever the model is.

        Such as an AUC without both classes, a recall without the class, a mean without weights.
        Keras's value is 0 then.
        """
        variables = self._variables()
        by_variable = {
            id(variables[place]): value
            for place, value in zip(self._places(names), states, strict=True)
        }

        def lacks_records(metric: keras.metrics.Metric) -> bool:
            if isinstance(metric, keras.metrics.Mean):  # of weights, if all sums are 0
                return not any(np.any(by_variable[id(each)]) for each in metric.variables)
            needed = [classes for kinds, classes in _NEEDED if isinstance(metric, kinds)]
            # The mean of the scores of several classes has a value without some of them.
            lacks = np.all if isinstance(metric, keras.metrics.FBetaScore) else np.any
            return any(
                lacks(sum(by_variable[id(getattr(metric, each))] for each in sums) == 0)
                for sums in chain.from_iterable(needed)
            )

        return frozenset(
            name
            for name, each in self._by_name.items()
            if (names is None or name in names) and lacks_records(each)
        )

    def _results_of(self, states: list[tf.Tensor], names: Names) -> dict[str, tf.Tensor]:
        places = self._places(names)

        def results(known: Sequence[tf.Tensor]) -> dict[str, tf.Tensor]:
            state = [tf.constant(each) for each in self.zero]
            for place, each in zip(places, known, strict=True):
                state[place] = each
            found = self._result(state)
            return {name: found[name] for name in found if names is None or name in names}

        return tf.vectorized_map(results, states)

    def _result(self, states: Sequence[tf.Tensor]) -> dict[str, tf.Tensor]:
        compiled = self._compiled
        with compiled.scope(states):
            results = flat(compiled.model.get_metrics_result())
            found = {name: _mean(value) for name, value in results.items()}
        at = len(compiled.variables)
        for name, (metric, _) in self._extra.items():
            count = len(metric.variables)
            found[name] = _mean(metric.stateless_result(states[at : at + count]))
            at += count
        return found


def _rows(records: Any, rows: slice) -> Any:
    return tf.nest.map_structure(lambda each: None if each is None else each[rows], records)


def _unlike(records: Records) -> NDArray[np.int64]:
    """The places of the first records, and of those of the least and greatest numbers.

    Without a record of a rare class, or one predicted as it, an F1 score is 0 for all batches.
    """
    count = len(records[4])
    numbers = [
        np.asarray(tf.cast(each[:_AMONG], tf.float32)).reshape(min(count, _AMONG), -1)
        for each in tf.nest.flatten(records[1:4])
        if isinstance(each, tf.Tensor) and each.dtype != tf.string
    ]
    ends = max(1, _TRIED // 4 // max(1, len(numbers)))
    orders = [np.argsort(each @ np.arange(1, each.shape[1] + 1)) for each in numbers]
    chosen = [part for order in orders for part in (order[:ends], order[-ends:])]
    return np.unique(np.concatenate([np.arange(min(count, _TRIED // 2)), *chosen]))


def _mean(value: Any) -> tf.Tensor:
    return tf.reduce_mean(tf.cast(value, tf.float32))


def output_names(model: keras.Model) -> list[str]:
    """The names of the model's outputs; empty for a subclass, which has them only when called."""
    outputs = getattr(model, "output", None)
    # Keras's names are those of layers, which the keys of a dict need not be.
    return list(outputs if isinstance(outputs, Mapping) else getattr(model, "output_names", ()))


def chosen(outputs: Any, output: str | None, names: Sequence[str] = ()) -> Any:
    """The output of that name, or the only one; ``names`` are those of a list.

    Raises:
        FinalError: there is no such output; or there are several, and ``output`` names none.
    """
    if isinstance(outputs, list | tuple):
        names = names or [f"output_{place}" for place in range(len(outputs))]
        outputs = dict(zip(names, outputs, strict=False))
    if not isinstance(outputs, Mapping):
        return outputs
    if output is None and len(outputs) == 1:
        return next(iter(outputs.values()))
    if output not in outputs:
        raise FinalError(
            f"the model has the outputs {', '.join(outputs)}: a rule for a metric that is not "
            f'compiled names one, as output="{next(iter(outputs))}"; got {output!r}'
        )
    return outputs[output]


def name_of(rule: Rule, compiled: Sequence[str]) -> str:
    """The name of the rule's metric among the results; that of an output has both names."""
    if rule.output is None or (
        rule.metric in compiled and f"{rule.output}_{rule.metric}" not in compiled
    ):
        return rule.metric
    return f"{rule.output}_{rule.metric}"


def extra_metrics(
    rules: Sequence[Rule], compiled: Sequence[str], functions: Mapping[str, Callable[..., Any]]
) -> dict[str, tuple[keras.metrics.Metric, str | None]]:
    """The metrics of ``rules`` that are not compiled, by name, with the output of each.

    ``functions`` are those of the user's module.

    Raises:
        FinalError: a name is neither that of a metric nor of a function.
    """
    found = {}
    for rule in rules:
        name = name_of(rule, compiled)
        if name not in compiled:
            found[name] = (_metric(rule.metric, compiled, functions), rule.output)
    return found


def _metric(
    name: str, compiled: Sequence[str], functions: Mapping[str, Callable[..., Any]]
) -> keras.metrics.Metric:
    if name in functions:
        return PerRecord(functions[name], name=name)
    if name in _BY_OUTPUT:
        raise FinalError(
            f"{name!r} is not a metric of the model; it has {', '.join(compiled)}. Compile the "
            f'model with metrics=["{name}"], or name the one of its kind of output, such as '
            f"binary_{_BY_OUTPUT[name]}"
        )
    try:
        metric = keras.metrics.get(name)
    except TypeError as error:
        raise FinalError(
            f"{name!r} is not a metric of the model, and Keras needs more than its name: compile "
            f"the model with it ({error})"
        ) from error
    except ValueError as error:
        known = [*compiled, *functions, *_KERAS]
        raise FinalError(
            f"{name!r} is not a metric of the model{nearest(name, known)}; it has "
            f"{', '.join(compiled)}; a rule may also name one of keras.metrics, or a function of "
            "the model's module"
        ) from error
    if isinstance(metric, keras.metrics.Metric):
        if "y_true" not in inspect.signature(metric.update_state).parameters:
            raise FinalError(
                f"{name!r} is a metric of values, not of targets and predictions; name another, or "
                "a function of the model's module"
            )
        return metric
    return PerRecord(metric, name=name)


#: Names that mean another metric for each kind of output, where a model is compiled with them.
_BY_OUTPUT = {"accuracy": "accuracy", "acc": "accuracy"} | dict.fromkeys(
    ("crossentropy", "ce"), "crossentropy"
)

#: The names of Keras's metrics.
_KERAS = [each for each in dir(keras.metrics) if each[0].isupper()]


class PerRecord(keras.metrics.Mean):  # type: ignore[misc]  # Keras has no types
    """The mean of what a function returns for each record.

    A function of ``(y_true, y_pred)`` is weighted by the sample weights; one of
    ``(y_true, y_pred, weight)`` uses them itself, and gets None if there are none.
    """

    def __init__(self, function: Callable[..., Any], name: str) -> None:
        super().__init__(name=name)
        self._function = tensorflow2.converted(function)
        self._weighs = len(inspect.signature(function).parameters) > 2
        #: The shape of what it returns for a record, known by the first records.
        self._parts: Shape = ()

    def update_state(self, y_true: Any, y_pred: Any, sample_weight: Any = None) -> None:
        """Add the values of a batch.

        Raises:
            FinalError: they are not one for each record, or for each part of one.
        """
        if self._weighs:
            values = self._function(y_true, y_pred, sample_weight)
        else:
            values = self._function(y_true, y_pred)
        if tf.executing_eagerly():  # as in ``build``; else shapes may be unknown
            self._check_shape(tuple(values.shape), tuple(y_true.shape), tuple(y_pred.shape))
            self._parts = tuple(values.shape[1:])
        values = tf.reshape(values, [-1, *self._parts])
        super().update_state(values, None if self._weighs else sample_weight)

    def _check_shape(self, shape: Shape, y_true: Shape, y_pred: Shape) -> None:
        # Records of (n,) less those of (n, 1) are (n, n), and their mean would be another.
        if not shape or shape[0] != y_pred[0] or not {1, *y_true[1:], *y_pred[1:]} >= {*shape[1:]}:
            raise FinalError(
                f"the function {self.name!r} returns values of the shape {shape} for targets "
                f"{y_true} and predictions {y_pred}, and must return a number for each record: "
                "give both the same shape first, as by tf.reshape(y_true, tf.shape(y_pred))"
            )
