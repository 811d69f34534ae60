"""What the predictions of a split show besides metrics: errors by class, calibration, thresholds.

Everything is a sum over records, or a sample of bounded size, so that a split of any size fits into
memory. Sample weights are not used.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from aerotrain.evaluation.leakage import SAMPLE
from aerotrain.evaluation.records import CANDIDATE, Block
from aerotrain.serving.classes import are_labels
from aerotrain.serving.signature import by_name

#: Bins of predicted probabilities, for calibration and for thresholds.
BINS, THRESHOLDS = 10, 100

#: The most classes of which errors are counted, and of which all of them are stored.
_MOST_CLASSES, _STORED_CLASSES = 2000, 50

#: The most frequent confusions that are stored of more classes.
_CONFUSIONS = 200

#: The worst records that are kept, and the pairs of target and prediction of a number.
WORST, _SAMPLE = 10, 2000

#: The fewest records of a class that should be predicted at least once.
_FEW = 10

_CONSTANT = (
    "is the same for all records: look at the learning rate, the scales of the inputs, and whether "
    "they reach it"
)

Floats = NDArray[np.float64]


@dataclass(frozen=True, order=True)
class Worst:
    """A record that is predicted badly: its error, its place in the split, what was predicted."""

    error: float
    place: int
    target: str = field(compare=False)
    predicted: str = field(compare=False)


class Diagnostics:
    """Gathers what the outputs of a model show; ``names`` are those of the classes of ``label``."""

    def __init__(self, names: Sequence[str] = (), label: str = "label") -> None:
        #: The targets of the first records, by output.
        self.targets: dict[str, Floats] = {}
        self._names, self._label = names, label
        self._outputs: dict[str, ClassOutput | NumberOutput | None] = {}
        #: The least and the greatest value of each output, by its place in the prediction.
        self._ranges: dict[str, tuple[Floats, Floats]] = {}
        #: The worst records of each output, the worst first.
        self.worst: dict[str, list[Worst]] = {}

    def watched(self, blocks: Iterable[Block]) -> Iterator[Block]:
        """The same blocks, which are added as they pass."""
        for block in blocks:
            targets = by_name(block.y)
            for name, predictions in by_name(block.predictions[CANDIDATE]).items():
                if name in targets:
                    self._add(name, np.asarray(targets[name]), np.asarray(predictions), block)
                    if not block.first:
                        self.targets[name] = np.asarray(targets[name])[:SAMPLE]
            yield block

    def _add(self, name: str, y: NDArray[Any], predictions: NDArray[Any], block: Block) -> None:
        if not (_is_numeric(y) and _is_numeric(predictions)):
            return
        predicted = predictions.astype(np.float64).reshape(len(predictions), -1)
        if name not in self._outputs:
            predicts_label = self._names and are_labels(y, np.asarray(block.features[self._label]))
            names = self._names if predicts_label else ()
            self._outputs[name] = _output_of(y, predictions, names)
        output = self._outputs[name]
        if output is None:
            return
        least, greatest = self._ranges.get(name, (predicted[0], predicted[0]))
        self._ranges[name] = (
            np.minimum(least, predicted.min(axis=0)),
            np.maximum(greatest, predicted.max(axis=0)),
        )
        targets = y.astype(np.float64).reshape(len(y), -1)
        errors = output.add(targets, predicted)
        found = [
            Worst(
                float(errors[row]), block.first + row, *output.shown(targets[row], predicted[row])
            )
            for row in np.argsort(-errors, kind="stable")[:WORST].tolist()
        ]
        both = [*self.worst.get(name, []), *found]
        self.worst[name] = sorted(both, key=lambda each: (-each.error, each.place))[:WORST]

    @property
    def outputs(self) -> dict[str, dict[str, Any]]:
        """What was found of each output, as JSON."""
        return {name: each.to_dict() for name, each in self._outputs.items() if each is not None}

    def warnings(self) -> list[str]:
        """One sentence for each thing that looks wrong."""
        found = []
        for name, output in self._outputs.items():
            title = "the output" if name == "predictions" else f"the output {name!r}"
            if output is not None:
                found += [f"{title} {each}" for each in output.warnings()]
                if len(self.worst[name]) > 1 and np.allclose(*self._ranges[name], atol=0):
                    found.append(f"{title} {_CONSTANT}")
        return found


def _is_numeric(values: NDArray[Any]) -> bool:
    return values.dtype.kind in "fiub" and values.size > 0


class Calibration:
    """How often predictions of a probability are right, by bins of the probability.

    The expected calibration error is the mean distance of the two, weighted by records
    (C. Guo et al., On Calibration of Modern Neural Networks, 2017).
    """

    def __init__(self) -> None:
        self._records, self._right, self._sums = (np.zeros(BINS) for _ in range(3))

    def add(self, probabilities: Floats, right: NDArray[Any]) -> None:
        bins = np.clip((probabilities * BINS).astype(int), 0, BINS - 1)
        self._records += np.bincount(bins, minlength=BINS)
        self._right += np.bincount(bins, right, minlength=BINS)
        self._sums += np.bincount(bins, probabilities, minlength=BINS)

    def to_dict(self) -> dict[str, Any]:
        known = self._records > 0
        each = np.maximum(self._records, 1)
        predicted, observed = self._sums / each, self._right / each
        distance = float((np.abs(predicted - observed) * self._records).sum())
        return {
            "bins": [
                {"records": int(n), "predicted": float(p), "observed": float(o)}
                for n, p, o in np.stack([self._records, predicted, observed], axis=1)[known]
            ],
            "expected_calibration_error": distance / max(1.0, float(self._records.sum())),
        }


class ClassOutput:
    """Probabilities, or logits, of several classes, or a single one of the second of two.

    An output gathers sums: ``add`` returns the error of each record, which is greater the worse it
    is predicted; ``shown`` are the target and the prediction of one record as texts; ``to_dict`` is
    what was found as JSON, and ``warnings`` say in sentences that follow the output's name what
    looks wrong.
    """

    def __init__(self, names: Sequence[str], *, is_binary: bool) -> None:
        self._names, self._is_binary = names, is_binary
        self._calibration = Calibration()
        self._confusion = np.zeros((len(names), len(names)), np.int64)
        #: The records of each of two classes by their probability of the second.
        self._counts = np.zeros((2, THRESHOLDS + 1), np.int64)
        self._are_logits: bool | None = None

    def add(self, y: Floats, predicted: Floats) -> Floats:
        labels = _labels(y)
        if self._are_logits is None:
            is_whole = np.allclose(predicted.sum(axis=1), 1, atol=0.02)
            in_range = (predicted <= 1).all() if self._is_binary else is_whole
            self._are_logits = not ((predicted >= 0).all() and in_range)
        p = self._probabilities(predicted)
        known = (labels >= 0) & (labels < len(self._names))
        if self._is_binary:
            places = np.floor(p[:, 1] * THRESHOLDS + 1e-9).astype(int)
            np.add.at(self._counts, (labels[known], places[known]), 1)
            guesses = (places >= THRESHOLDS // 2).astype(int)
            self._calibration.add(p[known, 1], labels[known])
        else:
            guesses = p.argmax(axis=1)
            self._calibration.add(p.max(axis=1), guesses == labels)
        np.add.at(self._confusion, (labels[known], guesses[known]), 1)
        return 1 - np.where(known, p[np.arange(len(p)), np.where(known, labels, 0)], 0)

    def _probabilities(self, predicted: Floats) -> Floats:
        """The probability of each class: ``(records, classes)``."""
        if self._is_binary:
            if self._are_logits:
                predicted = 1 / (1 + np.exp(-np.clip(predicted, -50, 50)))
            second = np.clip(np.nan_to_num(predicted), 0, 1)
            return np.concatenate([1 - second, second], axis=1)
        p = np.nan_to_num(predicted)
        if self._are_logits:
            p = np.exp(p - p.max(axis=1, keepdims=True))
            p /= p.sum(axis=1, keepdims=True)
        return p

    def shown(self, y: Floats, predicted: Floats) -> tuple[str, str]:
        p, [label] = self._probabilities(predicted[None])[0], _labels(y[None]).tolist()
        name = self._names[label] if 0 <= label < len(self._names) else str(label)
        return name, f"{self._names[int(p.argmax())]}: {p.max():.1%}"

    def to_dict(self) -> dict[str, Any]:
        found: dict[str, Any] = {
            "kind": "binary" if self._is_binary else "classes",
            "classes": list(self._names),
            "calibration": self._calibration.to_dict(),
        }
        if self._is_binary:
            found["thresholds"] = self._thresholds()
        if len(self._names) <= _STORED_CLASSES:
            return {**found, "confusion": self._confusion.tolist()}
        wrong = self._confusion * (1 - np.eye(len(self._names), dtype=np.int64))
        order = np.argsort(-wrong, axis=None, kind="stable")[:_CONFUSIONS]
        pairs = zip(*np.unravel_index(order, wrong.shape), strict=True)
        found["confusions"] = [
            {
                "label": self._names[a],
                "predicted": self._names[b],
                "records": int(wrong[a, b]),
                "of": int(self._confusion[a].sum()),
            }
            for a, b in pairs
            if wrong[a, b]
        ]
        return found

    def _thresholds(self) -> list[dict[str, float]]:
        """Precision and recall where records from each threshold on are of the second class."""
        false, true = self._counts[:, ::-1].cumsum(axis=1)[:, ::-1].tolist()
        positive = max(1, int(self._counts[1].sum()))
        return [
            {"threshold": n / THRESHOLDS, "precision": t / (t + f), "recall": t / positive}
            for n, (f, t) in enumerate(zip(false, true, strict=True))
            if t + f
        ]

    def warnings(self) -> Iterator[str]:
        predicted, records = self._confusion.sum(axis=0), self._confusion.sum(axis=1)
        never = [
            f"{name} ({has:,})"
            for name, times, has in zip(self._names, predicted, records, strict=True)
            if not times and has >= _FEW
        ]
        if never:
            more = f" and {len(never) - 5} more" if len(never) > 5 else ""
            shown = ", ".join(never[:5]) + more
            yield f"never predicts classes of which there are records: {shown}"


def _labels(y: Floats) -> NDArray[np.int64]:
    """The number of each class, which is one-hot or itself."""
    return (y.argmax(axis=1) if y.shape[1] > 1 else y[:, 0]).astype(np.int64)


class NumberOutput:
    """A number that is to be near its target."""

    def __init__(self) -> None:
        self._random = np.random.default_rng(0)
        self._keys: Floats = np.zeros(0)
        self._pairs: Floats = np.zeros((0, 2))
        self._records = 0

    def add(self, y: Floats, predicted: Floats) -> Floats:
        keys = np.concatenate([self._keys, self._random.random(len(y))])
        pairs = np.concatenate([self._pairs, np.stack([y[:, 0], predicted[:, 0]], axis=1)])
        chosen = np.sort(np.argsort(keys, kind="stable")[:_SAMPLE])
        self._keys, self._pairs = keys[chosen], pairs[chosen]
        self._records += len(y)
        return np.abs(np.nan_to_num(y[:, 0] - predicted[:, 0], nan=np.inf))

    def shown(self, y: Floats, predicted: Floats) -> tuple[str, str]:
        return f"{y[0]:.6g}", f"{predicted[0]:.6g}"

    def to_dict(self) -> dict[str, Any]:
        residuals = self._pairs[:, 1] - self._pairs[:, 0]
        known = np.isfinite(self._pairs).all(axis=1)
        shares = (0.01, 0.05, 0.25, 0.5, 0.75, 0.95, 0.99)
        values = np.quantile(residuals[known], shares) if known.any() else np.full(7, np.nan)
        return {
            "kind": "number",
            "records": self._records,
            "sample": [[float(a), float(b)] for a, b in self._pairs[known]],
            "residual_quantiles": {
                f"{share:g}": float(value) for share, value in zip(shares, values, strict=True)
            },
        }

    def warnings(self) -> Iterator[str]:
        return iter(())


def _output_of(
    y: NDArray[Any], predictions: NDArray[Any], names: Sequence[str]
) -> ClassOutput | NumberOutput | None:
    """What to gather of an output, by the shapes and values of its first records; None: nothing."""
    if predictions.ndim > 2 or y.ndim > 2:
        return None
    width = predictions.reshape(len(predictions), -1).shape[1]
    targets = y.reshape(len(y), -1)
    if width == 1 and targets.shape[1] == 1:
        if set(np.unique(targets).tolist()) <= {0, 1}:
            return ClassOutput(names if len(names) == 2 else ("0", "1"), is_binary=True)
        return NumberOutput()
    are_classes = targets.shape[1] == 1 and not (targets % 1).any() and targets.min() >= 0
    is_one_hot = targets.shape[1] == width and bool(
        ((targets == 0) | (targets == 1)).all() and (targets.sum(axis=1) == 1).all()
    )
    if width > _MOST_CLASSES or not (are_classes or is_one_hot):
        return None
    known = names if len(names) == width else [*map(str, range(width))]
    return ClassOutput(known, is_binary=False)
