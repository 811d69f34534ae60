"""Every loss and metric of Keras, and ways of a user's own, under each strategy.

``python -m benchmarks.keras_table`` trains each row by ``fit`` on one device, and in each setting
by our steps with the same uneven batches, and evaluates it as ``evaluate`` of a pipeline does. It
prints one JSON object for each cell: ``equal``, ``refused`` or ``said`` (before the first step, by
name), or ``different``. The losses and metrics are the outputs of a few models, since one model for
each would cost more than all of this. The outcomes are written to ``results/keras.json``, which
``docs/models.md`` shows as a table.
"""

import argparse
import contextlib
import inspect
import io
import itertools
import json
import os
import re
import subprocess
import sys
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from aerotrain.contract.errors import FinalError
from aerotrain.contract.training import TrainArguments
from aerotrain.evaluation.gate import Gate, has_metrics_of_records
from aerotrain.evaluation.intervals import GROUPS
from aerotrain.evaluation.records import CANDIDATE, Block
from aerotrain.supervisor.ports import reserved_ports
from aerotrain.training.checkpoints.metadata import path_of
from aerotrain.training.input.batches import MicrobatchSpec
from aerotrain.training.internals import keras3
from aerotrain.training.model.callbacks import rows as callback_rows
from aerotrain.training.model.checks import check_asynchronous
from aerotrain.training.model.code import UserCode, features_and_label
from aerotrain.training.model.keras_adapter import KERAS
from aerotrain.training.steps.custom import has_custom_step
from aerotrain.training.steps.state import flat
from aerotrain.training.strategies import ENGINES
from benchmarks.models.sharing import OWN

#: Sizes of the batches: of two microbatches of 5 records one is larger, of 1 record one is empty.
SIZES = (8, 8, 5, 1, 8, 2)
LENGTH, CLASSES = 5, 3

#: The strategy and the number of microbatches of each setting.
SETTINGS: Mapping[str, tuple[str, int]] = {
    "one_device": ("one_device", 1),
    "gradient_accumulation_steps": ("one_device", 2),
    "mirrored": ("mirrored", 1),
    "central_storage": ("central_storage", 1),
    "multi_worker_mirrored": ("multi_worker_mirrored", 1),
    "parameter_server": ("parameter_server", 1),
}

#: The replicas of settings that are a cluster, and how many of the first are processes; the others
#: are servers in the first process.
CLUSTERS: Mapping[str, tuple[Sequence[str], int]] = {
    "multi_worker_mirrored": (("chief", "worker"), 2),
    "parameter_server": (("chief", "worker", "ps"), 1),
}

#: The setting in which a model is not trained, but evaluated.
EVALUATE = "evaluate"

RESULTS = Path(__file__).parent / "results" / "keras.json"

#: The outcomes, from the best to the worst.
OUTCOMES = ("equal", "said", "refused", "different")
REDUCTIONS = ("sum", "sum_over_batch_size", "mean", "mean_with_sample_weight")

#: The greatest difference from ``fit`` that is rounding, as a part of what training has changed.
TOLERANCE = 2e-3


def _by_name(by_target: Mapping[str, str]) -> dict[str, str]:
    """The target of each name, in the order of the names."""
    pairs = ((name, target) for target, names in by_target.items() for name in names.split())
    return dict(sorted(pairs))


#: What the losses and metrics of Keras compare.
LOSSES = _by_name(
    {
        "bits": """BinaryCrossentropy BinaryFocalCrossentropy Dice Hinge SquaredHinge Tversky""",
        "kind": """CategoricalCrossentropy CategoricalFocalCrossentropy CategoricalHinge
            KLDivergence""",
        "label": "CategoricalGeneralizedCrossEntropy SparseCategoricalCrossentropy",
        "numbers": """CosineSimilarity Huber LogCosh MeanAbsoluteError MeanAbsolutePercentageError
            MeanSquaredError MeanSquaredLogarithmicError Poisson""",
        "phrase": "CTC",
        "place": "Circle",
    }
)
METRICS = _by_name(
    {
        "bits": """AUC BinaryAccuracy BinaryCrossentropy BinaryIoU FalseNegatives FalsePositives
            Hinge Precision PrecisionAtRecall Recall RecallAtPrecision SensitivityAtSpecificity
            SpecificityAtSensitivity SquaredHinge TrueNegatives TruePositives""",
        "kind": """CategoricalAccuracy CategoricalCrossentropy CategoricalHinge F1Score FBetaScore
            KLDivergence OneHotIoU OneHotMeanIoU TopKCategoricalAccuracy""",
        "label": """IoU MeanIoU SparseCategoricalAccuracy SparseCategoricalCrossentropy
            SparseTopKCategoricalAccuracy""",
        "numbers": """Accuracy ConcordanceCorrelation CosineSimilarity LogCoshError
            MeanAbsoluteError MeanAbsolutePercentageError MeanSquaredError
            MeanSquaredLogarithmicError PearsonCorrelation Poisson R2Score RootMeanSquaredError""",
    }
)
#: The options of metrics that need some.
_CLASSES = {"num_classes": CLASSES}
OPTIONS: Mapping[str, Mapping[str, Any]] = {
    "IoU": {**_CLASSES, "target_class_ids": [0], "sparse_y_pred": False},
    "MeanIoU": {**_CLASSES, "sparse_y_pred": False},
    "OneHotIoU": {**_CLASSES, "target_class_ids": [0]},
    "OneHotMeanIoU": _CLASSES,
    "PrecisionAtRecall": {"recall": 0.5},
    "RecallAtPrecision": {"precision": 0.5},
    "SensitivityAtSpecificity": {"specificity": 0.5},
    "SpecificityAtSensitivity": {"sensitivity": 0.5},
    "SparseTopKCategoricalAccuracy": {"k": 2},
    "TopKCategoricalAccuracy": {"k": 2},
}
#: Bases, and what takes numbers rather than targets and outputs: none is compiled.
NOT_COMPILED = {"Loss", "Metric", "Mean", "MeanMetricWrapper", "Sum"}


def mean_distance(y: Any, y_pred: Any) -> Any:
    """A function of a user's own that returns a mean over records."""
    return keras.ops.mean(keras.ops.abs(y - y_pred))


def largest_distance(y: Any, y_pred: Any) -> Any:
    """One that returns no mean over records."""
    return keras.ops.max(keras.ops.abs(y - y_pred))


@dataclass(frozen=True)
class Head:
    """An output of a model, whose loss or metric is a row: ``masked`` ones are sequences."""

    row: str
    target: str
    make: Callable[[], Any]
    masked: bool = False

    @property
    def name(self) -> str:
        return re.sub(r"\W+", "_", self.row)

    @property
    def shape(self) -> tuple[int, ...]:
        """Of the records, or of their steps."""
        return (_many, LENGTH) if self.masked else (_many,)


OWN_FUNCTIONS = [
    Head(each.__name__, "numbers", lambda each=each: each)
    for each in (mean_distance, largest_distance)
]


@dataclass(frozen=True)
class Cell:
    """One cell of the table."""

    kind: str
    row: str
    setting: str
    outcome: str
    detail: str = ""


def losses_of(reduction: str) -> list[Head]:
    """A head for each loss, one more where padding is masked, and those of functions.

    ``mixed`` gives each loss another reduction than its neighbours.
    """
    turns = itertools.cycle(REDUCTIONS)

    def made(name: str, **options: Any) -> Callable[[], Any]:
        own = next(turns) if reduction == "mixed" else reduction
        return partial(getattr(keras.losses, name), reduction=own, **options)

    flat = [Head(name, target, made(name)) for name, target in LOSSES.items()]
    masked = [
        Head(f"{name} masked", target, made(name), masked=True)
        for name, target in LOSSES.items()
        if target not in ("phrase", "place")
    ]
    ignoring = made("SparseCategoricalCrossentropy", ignore_class=1)
    return [*flat, *masked, Head("ignore_class", "label", ignoring), *OWN_FUNCTIONS]


def metrics() -> list[Head]:
    """A head for each metric, and for the functions."""
    known = [
        Head(name, target, partial(getattr(keras.metrics, name), **OPTIONS.get(name, {})))
        for name, target in METRICS.items()
    ]
    return [*known, *OWN_FUNCTIONS]


def missing() -> set[str]:
    """The losses and metrics of Keras that have no row."""
    everything = {
        name
        for module, known in ((keras.losses, LOSSES), (keras.metrics, METRICS))
        for name, each in vars(module).items()
        if inspect.isclass(each) and name not in known
    }
    return everything - NOT_COMPILED


#: Features of all models: vectors, and sequences padded with zeros.
_draw = np.random.default_rng(5)
_many = sum(SIZES)
_lengths = _draw.integers(1, LENGTH + 1, _many)
_here = np.arange(LENGTH)[None, :] < _lengths[:, None]
FEATURES = {
    "vector": _draw.normal(size=(_many, 4)).astype(np.float32),
    "sequence": (_draw.normal(size=(_many, LENGTH, 4)) * _here[..., None]).astype(np.float32),
}


def target_of(head: Head) -> Any:
    """Values that the head is to learn."""
    draw, shape = np.random.default_rng(11), head.shape
    match head.target:
        case "numbers":
            return draw.uniform(0.5, 1.5, (*shape, 2)).astype(np.float32)
        case "bits":
            return draw.integers(0, 2, (*shape, 2)).astype(np.float32)
        case "phrase":
            return draw.integers(1, CLASSES, (*shape, 2)).astype(np.int32)
    labels = draw.integers(0, CLASSES, shape)
    return np.eye(CLASSES, dtype=np.float32)[labels] if head.target == "kind" else labels


def output_of(head: Head, vector: Any, sequence: Any) -> Any:
    """The layer or layers of a head."""
    units, activation, last = {
        "numbers": (2, "softplus", None),
        "bits": (2, "sigmoid", None),
        "phrase": (LENGTH * (CLASSES + 1), None, keras.layers.Reshape),
        "place": (CLASSES, None, keras.layers.UnitNormalization),
    }.get(head.target, (CLASSES, "softmax", None))
    name = f"{head.name}_dense" if last else head.name
    dense = keras.layers.Dense(units, activation, name=name)(sequence if head.masked else vector)
    shape = [(LENGTH, CLASSES + 1)] if head.target == "phrase" else []
    return last(*shape, name=head.name)(dense) if last else dense


@dataclass(frozen=True)
class Table:
    """A model whose outputs are rows, and its data; ``own`` builds one of a user's own."""

    kind: str
    heads: Sequence[Head]
    weighted: bool = True
    note: str = ""
    own: Callable[[], Any] | None = None

    def without(self, rows: Sequence[str]) -> "Table":
        return replace(self, heads=[each for each in self.heads if each.row not in rows])

    def user(self) -> UserCode:
        return UserCode(
            "here", lambda _: self.own() if self.own else self._built(), features_and_label
        )

    def _built(self) -> Any:
        vector = keras.Input((4,), name="vector")
        sequence = keras.Input((LENGTH, 4), name="sequence")
        known = keras.layers.Masking()(sequence)
        outputs = {each.name: output_of(each, vector, known) for each in self.heads}
        model = keras.Model({"vector": vector, "sequence": sequence}, outputs)
        optimizer = keras.optimizers.SGD(0.01)
        if self.kind == "loss":
            model.compile(optimizer, {each.name: each.make() for each in self.heads})
            return model
        weighing = [e for e in self.heads if e.row in METRICS and "IoU" not in e.row]
        model.compile(
            optimizer,
            {each.name: LOSS_OF[each.target] for each in self.heads},
            metrics={each.name: [each.make()] for each in self.heads},
            weighted_metrics={each.name: [each.make()] for each in weighing},
        )
        return model

    @property
    def data(self) -> Any:
        if self.own:
            return FEATURES, target_of(self.heads[0])
        parts = (FEATURES, {each.name: target_of(each) for each in self.heads})
        weights = {
            each.name: np.random.default_rng(13).uniform(0.5, 2.0, each.shape).astype(np.float32)
            for each in self.heads
        }
        return (*parts, weights) if self.weighted else parts

    def cell(self, row: str, setting: str, outcome: str, detail: str) -> Cell:
        row = f"{row} ({self.note})" if self.note else row
        return Cell(self.kind, row, setting, outcome, detail)


#: The losses of outputs that are measured, by what they are to learn.
LOSS_OF = {
    "bits": "binary_crossentropy",
    "numbers": "mse",
    "kind": "categorical_crossentropy",
    "label": "sparse_categorical_crossentropy",
}


def tables(quick: bool) -> Iterator[Table]:
    pairs = zip(REDUCTIONS, (False, True, False, True), strict=True)
    for reduction, weighted in (("mixed", True),) if quick else pairs:
        note = f"{reduction}, {'with' if weighted else 'no'} sample weights"
        yield Table("loss", losses_of(reduction), weighted, note)
    yield Table("metric", metrics())
    for name, build in OWN.items():
        yield Table("model", [Head(name, "numbers", lambda: None)], weighted=False, own=build)


class Arrays:
    """What a step runner needs of an input pipeline, with batches of ``data`` in memory."""

    schedule = SimpleNamespace(records=_many // 8 * 8 + 5)

    def __init__(self, data: Any, strategy: str, **options: Any) -> None:
        self._data = data
        self.job = SimpleNamespace(strategy=strategy, count=lambda _role: 1)
        self.arguments = TrainArguments(
            model="here",
            data="",
            batch_size=8,
            steps_per_execution=len(SIZES),
            **options,
        )
        self.spec = tf.nest.map_structure(
            lambda each: tf.TensorSpec([None, *each.shape[1:]], each.dtype), data
        )

    def sample(self) -> Any:
        return self._taken(tf.range(SIZES[0]))

    def local(self, _step: int) -> tf.data.Dataset:
        batches = self._rows(1).map(self._taken)
        return batches.apply(tf.data.experimental.assert_cardinality(len(SIZES)))

    def in_microbatches(self, _step: int) -> Callable[[Any], tf.data.Dataset]:
        def pieces(context: Any) -> tf.data.Dataset:
            replicas = context.num_replicas_in_sync
            here = replicas // context.num_input_pipelines
            first = context.input_pipeline_id * here
            many = self.arguments.gradient_accumulation_steps
            cut = MicrobatchSpec(replicas=replicas, accumulate=many)

            def element(replica: Any, rows: Any) -> Any:
                made = (cut.piece(rows, replica * many + each) for each in range(many))
                return tuple((weight, self._taken(piece)) for weight, piece in made)

            numbered = self._rows(here).enumerate()
            return numbered.map(lambda number, rows: element(first + number % here, rows))

        return pieces

    remote = local

    def _rows(self, times: int) -> tf.data.Dataset:
        """The rows of each batch, so many times; made by TensorFlow, as it is on workers."""
        ends = np.cumsum(SIZES)

        def rows(number: tf.Tensor) -> tf.Tensor:
            end = tf.constant(ends, tf.int64)[number // times]
            return tf.range(end - tf.constant(SIZES, tf.int64)[number // times], end)

        return tf.data.Dataset.range(times * len(SIZES)).map(rows)

    def _taken(self, rows: Any) -> Any:
        return tf.nest.map_structure(lambda each: tf.gather(each, rows), self._data)


@dataclass(frozen=True)
class Trained:
    """The variables by path, at the start and at the end, and the logs."""

    model: Any
    begin: Mapping[str, Any]
    end: Mapping[str, Any]
    logs: Mapping[str, float]
    said: str = ""

    def distance(self, other: "Trained", name: str) -> float:
        """The largest difference in what belongs to ``name``, or in all without such a part."""
        own = [path for path in self.end if path.split("/")[0].removesuffix("_dense") == name]
        logged = [
            each
            for each in other.logs
            if each == f"{name}_loss" or each.startswith((f"{name}_", f"weighted_{name}"))
        ]
        paths, logs = (own, logged) if own else (list(self.end), list(other.logs))
        moved = max(np.abs(other.end[each] - other.begin.get(each, 0.0)).max() for each in paths)
        apart = [np.abs(self.end[each] - other.end[each]).max() / (moved + 1e-9) for each in paths]
        apart += [
            abs(self.logs[each] - other.logs[each]) / (abs(other.logs[each]) + 1e-6)
            for each in logs
        ]
        worst = max(apart)
        return float("inf") if np.isnan(worst) else float(worst)


def _values(model: Any) -> dict[str, Any]:
    # The metrics of a tf_keras model are among its variables.
    variables = model.variables if KERAS.name == "keras" else model.trainable_variables
    found = {path_of(each): each.numpy().astype(np.float64) for each in variables}
    return {path: each for path, each in found.items() if not path.startswith("seed")}


def by_fit(table: Table) -> Trained:
    arrays = Arrays(table.data, "one_device")
    KERAS.seed(3)
    model = table.user().build({}, arrays.spec)
    begin = _values(model)
    history = model.fit(arrays.local(0), verbose=0).history
    logs = {name: float(np.mean(values[-1])) for name, values in history.items()}
    return Trained(model, begin, _values(model), logs)


def by_us(table: Table, distribution: Any, strategy: str, **options: Any) -> Trained:
    """The training with these options; a FinalError if it is refused."""
    arrays = Arrays(table.data, strategy, **options)
    engine = ENGINES[strategy]
    output = io.StringIO()
    with contextlib.redirect_stdout(output):
        with distribution.scope():
            KERAS.seed(3)
            model = table.user().build({}, arrays.spec)
            check_asynchronous(strategy, model)
            counter = tf.Variable(
                0, dtype=tf.int64, aggregation=tf.VariableAggregation.ONLY_FIRST_REPLICA
            )
            step = engine.step(model, counter, arrays.spec)
        begin = _values(model)
        step_runner: Any = engine.step_runner(distribution, step, arrays, 0)  # type: ignore[arg-type]
        *_, ran = step_runner.run(len(SIZES))
    return Trained(model, begin, _values(model), step.metrics.results(ran.sums), output.getvalue())


def by_evaluate(table: Table) -> Iterator[Cell]:
    """The cells of what an evaluation measures, compared with ``evaluate`` of Keras."""
    KERAS.seed(3)
    data = tf.nest.map_structure(tf.constant, table.data)
    x, y, weight = keras.utils.unpack_x_y_sample_weight(data)
    model = table.user().build({}, Arrays(table.data, "one_device").spec)
    batches = tf.data.Dataset.from_tensor_slices(data).batch(8)
    theirs = flat(model.evaluate(batches, return_dict=True, verbose=0))
    block = block_of(model, x, y, weight)
    found = Gate(model, [], {}, {}, {}).judge([block], compared=False, batch_size=8)
    for head in table.heads:
        begins = (f"{head.name}_", f"weighted_{head.name}_")
        names = [each for each in theirs if each.startswith(begins)]
        names = ([f"{head.name}_loss"] if table.kind == "loss" else names) or [*theirs]
        expected = {name: float(np.mean(theirs[name])) for name in names}
        apart = max(
            abs(found.metrics[name] - value) / (abs(value) + 1e-6)
            for name, value in expected.items()
        )
        said = not expected.keys().isdisjoint(found.by_batches)
        outcome = "different" if not apart < TOLERANCE else "said" if said else "equal"
        detail = "measured by batches, without an interval" if said else f"{apart:.1e}"
        yield table.cell(head.row, EVALUATE, outcome, detail)


def block_of(model: Any, x: Any, y: Any, weight: Any = None) -> Block:
    """What an evaluation sees of these records."""
    count, added = len(tf.nest.flatten(x)[0]), []
    for first in range(0, count, 8):
        KERAS.predict(model, tf.nest.map_structure(lambda each, n=first: each[n : n + 8], x))
        added += [tf.add_n([tf.zeros([]), *model.losses])] * min(8, count - first)
    predictions = KERAS.predict(model, x)
    return Block(
        features={},
        groups=np.arange(count) % GROUPS,
        y=y,
        weight=weight,
        predictions={CANDIDATE: predictions},
        added_loss=tf.stack(added),
        x=x,
        masks=keras3.masks_of(predictions),
    )


def outcomes(settings: Sequence[str], quick: bool = False) -> Iterator[Cell]:
    """Every cell of those settings, of one model after another."""
    distributions = {
        name: ENGINES[name].build(TrainArguments(model="here", data=""))
        for name in {SETTINGS[each][0] for each in settings}
    }
    for table in tables(quick):
        fitted = by_fit(table)
        for setting in settings:
            strategy, accumulate = SETTINGS[setting]
            # Other models are cut alike; where one device cuts them, the losses show it.
            skipped = "" if has_custom_step(fitted.model) else "central_storage"
            if quick and (strategy == skipped or (table.kind == "model" and accumulate > 1)):
                continue
            yield from _of_setting(table, fitted, setting, distributions[strategy])
        by_records = has_metrics_of_records(fitted.model)
        if "mirrored" in settings and by_records and not (quick and table.kind == "model"):
            yield from by_evaluate(table)


def _of_setting(
    table: Table,
    fitted: Trained,
    setting: str,
    distribution: Any,
) -> Iterator[Cell]:
    """The cells of one model; rows that are refused are left out of it, and it is trained again."""
    strategy, accumulate = SETTINGS[setting]
    while table.heads:
        try:
            trained = by_us(table, distribution, strategy, gradient_accumulation_steps=accumulate)
        except FinalError as error:
            rows = [each.row for each in table.heads if each.name in str(error)]
            rows = rows or [each.row for each in table.heads]
            yield from (table.cell(row, setting, "refused", str(error)) for row in rows)
            table = table.without(rows)
            continue
        lines = trained.said.splitlines()
        for head in table.heads:
            distance = trained.distance(fitted, head.name)
            names = {head.name, f"{head.name}_{head.name}"}  # of a loss, and of a function's metric
            is_model = table.kind == "model"
            said = [line for line in lines if is_model or not names.isdisjoint(line.split("'"))]
            outcome = "said" if said else "equal" if distance < TOLERANCE else "different"
            yield table.cell(head.row, setting, outcome, " ".join(said) or f"{distance:.1e}")
        return


def _start_servers(setting: str) -> None:
    """Start the servers that are in this process: those of the last replicas."""
    cluster = json.loads(os.environ["TF_CONFIG"])["cluster"]
    replicas, processes = CLUSTERS[setting]
    for role in replicas[processes:]:
        tf.distribute.Server(cluster, job_name=role, task_index=0)


def _clustered(setting: str) -> Iterator[str]:
    """The lines that the first process of a cluster prints, of each loss with one reduction."""
    replicas, count = CLUSTERS[setting]
    command = [sys.executable, "-m", "benchmarks.keras_table", "--quick", "--setting", setting]
    with reserved_ports(len(replicas)) as ports:
        addresses = [f"127.0.0.1:{port.number}" for port in ports]
        cluster = {role: [each] for role, each in zip(replicas, addresses, strict=True)}
        processes = []
        for role in replicas[:count]:
            config = json.dumps({"cluster": cluster, "task": {"type": role, "index": 0}})
            output = subprocess.DEVNULL if processes else subprocess.PIPE
            environment = {**os.environ, "TF_CONFIG": config}
            processes.append(subprocess.Popen(command, env=environment, stdout=output, text=True))
        yield from processes[0].stdout or ()
        if codes := [code for each in processes if (code := each.wait())]:
            raise SystemExit(f"{setting}: exit codes {codes}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="a part, in one process")
    parser.add_argument("--setting", help=argparse.SUPPRESS)
    given = parser.parse_args()
    found: list[Cell] = []
    [cpu] = tf.config.list_physical_devices("CPU")
    if given.setting:
        _start_servers(given.setting)
        settings: Sequence[str] = [given.setting]
    else:
        two = [tf.config.LogicalDeviceConfiguration()] * 2
        tf.config.set_logical_device_configuration(cpu, two)
        settings = [each for each in SETTINGS if each not in CLUSTERS]
        settings = settings[1:] if given.quick else settings
    for cell in outcomes(settings, given.quick):
        print(json.dumps(asdict(cell)), flush=True)
        found.append(cell)
    if given.quick:
        return
    for setting in CLUSTERS:
        for line in _clustered(setting):
            print(line, end="", flush=True)
            if line.startswith('{"kind"'):
                found.append(Cell(**json.loads(line)))
    results = summary(found)
    RESULTS.write_text(json.dumps(results, indent=1) + "\n")
    print("\n".join(page(results)))
    counts = Counter(
        each for kind in results.values() for row in kind.values() for each in row.values()
    )
    print(json.dumps(counts))


def page(results: Mapping[str, Mapping[str, Mapping[str, str]]]) -> list[str]:
    """The table of the documentation; rows with equal outcomes are one."""
    columns = [*SETTINGS, EVALUATE]
    lines = [
        f"| | {' | '.join(f'`{each}`' for each in columns)} |",
        f"|{'---|' * (1 + len(columns))}",
    ]
    for kind, title in (("loss", "losses"), ("metric", "metrics"), ("model", "of a model's own")):
        alike: dict[tuple[str, ...], list[str]] = {}
        for row, found in results[kind].items():
            alike.setdefault(tuple(found.get(each, "–") for each in columns), []).append(row)
        for cells, rows in alike.items():
            lines.append(f"| {title}: {', '.join(rows)} | {' | '.join(cells)} |")
    by_outcome: dict[str, list[str]] = {}
    for name, _, outcome in callback_rows():
        by_outcome.setdefault(outcome, []).append(name)
    lines += ["", "| callbacks | under all strategies |", "|---|---|"]
    lines += [f"| {', '.join(names)} | {each} |" for each, names in by_outcome.items()]
    return lines


def summary(cells: Sequence[Cell]) -> dict[str, dict[str, dict[str, str]]]:
    """The worst outcome of each row and setting, over reductions and weights, by kind."""
    found: dict[str, dict[str, dict[str, str]]] = {}
    for cell in cells:
        row = found.setdefault(cell.kind, {}).setdefault(cell.row.partition(" (")[0], {})
        worst = max(row.get(cell.setting, OUTCOMES[0]), cell.outcome, key=OUTCOMES.index)
        row[cell.setting] = worst
    return found


if __name__ == "__main__":
    main()
