"""What the predictions of a split show besides metrics: errors, calibration, leaks, copies.

Everything is a sum over records, or a sample of bounded size, so that a split of any size fits into
memory. Sample weights are not used.

A column leaks if it alone gives the target away, as a copy of it does, or what is known only after
it: a table of the column's values, learned on one half of the records, predicts the other half.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from aerotrain.evaluation.records import CANDIDATE, Block
from aerotrain.serving.classes import are_labels
from aerotrain.serving.signature import by_name

#: The first records of which leaks and copies are looked for, and the fewest for leaks.
SAMPLE, _FEWEST = 5000, 200

#: Bins of predicted probabilities, for calibration and for thresholds.
_BINS, _THRESHOLDS = 10, 100

#: The most classes of an output that is looked at, and of which the confusions are stored.
_MOST_CLASSES, _STORED_CLASSES = 2000, 50

#: The pairs of target and prediction of a number that are kept.
_PAIRS = 2000

#: The fewest records of a class that should be predicted at least once.
_FEW = 10

#: The share of training records that may be in another split, by chance.
_COPIED = 0.01

#: Ranges of a column with more numbers, and the most classes: more values of a target are numbers.
_RANGES, _CLASSES = 64, 50

#: The share of right predictions, or of the variance that is explained, which is suspected; and of
#: the errors of the best constant that may be left.
_SUSPECTED, _LEFT = 0.98, 0.1

Floats = NDArray[np.float64]


class Diagnostics:
    """Gathers what the outputs of a model show; ``names`` are those of the classes of ``label``."""

    def __init__(self, names: Sequence[str] = (), label: str = "label") -> None:
        #: The targets of the first records, by output.
        self.targets: dict[str, NDArray[Any]] = {}
        self._names, self._label = names, label
        self._found: dict[str, ClassOutput | NumberOutput | None] = {}
        #: The least and the greatest value of each output, by its place in the prediction.
        self._ranges: dict[str, tuple[Floats, Floats]] = {}
        self._records = 0

    def watched(self, blocks: Iterable[Block]) -> Iterator[Block]:
        """The same blocks, which are added as they pass."""
        for block in blocks:
            targets = by_name(block.y)
            for name, predictions in by_name(block.predictions[CANDIDATE]).items():
                if name in targets:
                    y = np.asarray(targets[name])
                    self._add(name, y, np.asarray(predictions), block)
                    if not block.first:
                        self.targets[name] = y[:SAMPLE]
            self._records += len(block.groups)
            yield block

    def _add(self, name: str, y: NDArray[Any], predictions: NDArray[Any], block: Block) -> None:
        if not all(each.dtype.kind in "fiub" and each.size for each in (y, predictions)):
            return
        if name not in self._found:
            predicts_label = self._names and are_labels(y, np.asarray(block.features[self._label]))
            self._found[name] = output_of(y, predictions, self._names if predicts_label else ())
        output = self._found[name]
        if output is None:
            return
        predicted = predictions.astype(np.float64).reshape(len(predictions), -1)
        least, greatest = self._ranges.get(name, (predicted[0], predicted[0]))
        self._ranges[name] = (
            np.minimum(least, predicted.min(axis=0)),
            np.maximum(greatest, predicted.max(axis=0)),
        )
        output.add(y.astype(np.float64).reshape(len(y), -1), predicted)

    @property
    def outputs(self) -> dict[str, dict[str, Any]]:
        """What was found of each output, as JSON."""
        return {name: each.to_dict() for name, each in self._found.items() if each is not None}

    def warnings(self) -> list[str]:
        """One sentence for each thing that looks wrong."""
        found = []
        for name, output in self._found.items():
            title = "the output" if name == "predictions" else f"the output {name!r}"
            if isinstance(output, ClassOutput) and (never := output.never_predicted()):
                found.append(f"{title} never predicts classes of which there are records: {never}")
            several = output is not None and self._records > 1
            if several and np.allclose(*self._ranges[name], atol=0):
                found.append(
                    f"{title} is the same for all records: look at the learning rate, the scales "
                    "of the inputs, and whether they reach it"
                )
        return found


class ClassOutput:
    """Probabilities, or logits, of several classes, or a single one of the second of two.

    ``to_dict`` has the confusions of labels and predictions, for two classes precision and recall
    by threshold, and the calibration: how often predictions of a probability are right, by bins of
    the probability. The expected calibration error is the mean distance of the two, weighted by
    records (C. Guo et al., On Calibration of Modern Neural Networks, 2017).
    """

    def __init__(self, names: Sequence[str], *, is_binary: bool) -> None:
        self._names, self._is_binary = names, is_binary
        self._confusion = np.zeros((len(names), len(names)), np.int64)
        #: Records, those that are right, and the sum of probabilities, by bins.
        self._bins = np.zeros((3, _BINS))
        #: The records of each of two classes by their probability of the second.
        self._counts = np.zeros((2, _THRESHOLDS + 1), np.int64)
        self._are_logits: bool | None = None

    def add(self, y: Floats, predicted: Floats) -> None:
        """Add records; targets are the numbers of classes ``(records, 1)``, or one-hot."""
        labels = (y.argmax(axis=1) if y.shape[1] > 1 else y[:, 0]).astype(np.int64)
        if self._are_logits is None:
            self._are_logits = are_logits(predicted)
        p = self._probabilities(predicted)
        known = (labels >= 0) & (labels < len(self._names))
        if self._is_binary:
            places = np.floor(p[:, 1] * _THRESHOLDS + 1e-9).astype(int)
            np.add.at(self._counts, (labels[known], places[known]), 1)
            guesses = (places >= _THRESHOLDS // 2).astype(int)
            chances, right = p[known, 1], labels[known]
        else:
            guesses = p.argmax(axis=1)
            chances, right = p.max(axis=1), guesses == labels
        np.add.at(self._confusion, (labels[known], guesses[known]), 1)
        bins = np.clip((chances * _BINS).astype(int), 0, _BINS - 1)
        for sums, weights in zip(self._bins, (None, right, chances), strict=True):
            sums += np.bincount(bins, weights, minlength=_BINS)

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

    def to_dict(self) -> dict[str, Any]:
        records, right, sums = self._bins[:, self._bins[0] > 0]
        predicted, observed = sums / records, right / records
        distance = float((np.abs(predicted - observed) * records).sum())
        found: dict[str, Any] = {
            "kind": "binary" if self._is_binary else "classes",
            "classes": list(self._names),
            "calibration": {
                "bins": [
                    {"records": int(n), "predicted": float(p), "observed": float(o)}
                    for n, p, o in zip(records, predicted, observed, strict=True)
                ],
                "expected_calibration_error": distance / max(1.0, float(records.sum())),
            },
        }
        if self._is_binary:
            found["thresholds"] = self._thresholds()
        if len(self._names) <= _STORED_CLASSES:
            found["confusion"] = self._confusion.tolist()
        return found

    def _thresholds(self) -> list[dict[str, float]]:
        """Precision and recall where records from each threshold on are of the second class."""
        false, true = self._counts[:, ::-1].cumsum(axis=1)[:, ::-1].tolist()
        positive = max(1, int(self._counts[1].sum()))
        return [
            {"threshold": n / _THRESHOLDS, "precision": t / (t + f), "recall": t / positive}
            for n, (f, t) in enumerate(zip(false, true, strict=True))
            if t + f
        ]

    def never_predicted(self) -> str:
        """The classes that are never predicted, with their records; empty if there are none."""
        predicted, records = self._confusion.sum(axis=0), self._confusion.sum(axis=1)
        never = [
            f"{name} ({has:,})"
            for name, times, has in zip(self._names, predicted, records, strict=True)
            if not times and has >= _FEW
        ]
        more = f" and {len(never) - 5} more" if len(never) > 5 else ""
        return ", ".join(never[:5]) + more


class NumberOutput:
    """A number that is to be near its target: a random sample of both, and their differences."""

    def __init__(self) -> None:
        self._random = np.random.default_rng(0)
        self._keys: Floats = np.zeros(0)
        self._pairs: Floats = np.zeros((0, 2))
        self._records = 0

    def add(self, y: Floats, predicted: Floats) -> None:
        """Add records, ``(records, 1)`` each."""
        keys = np.concatenate([self._keys, self._random.random(len(y))])
        pairs = np.concatenate([self._pairs, np.stack([y[:, 0], predicted[:, 0]], axis=1)])
        chosen = np.sort(np.argsort(keys, kind="stable")[:_PAIRS])
        self._keys, self._pairs = keys[chosen], pairs[chosen]
        self._records += len(y)

    def to_dict(self) -> dict[str, Any]:
        pairs = self._pairs[np.isfinite(self._pairs).all(axis=1)]
        shares = (0.01, 0.05, 0.25, 0.5, 0.75, 0.95, 0.99)
        residuals = pairs[:, 1] - pairs[:, 0]
        values = np.quantile(residuals, shares) if len(pairs) else np.full(7, np.nan)
        return {
            "kind": "number",
            "records": self._records,
            "sample": pairs.tolist(),
            "residual_quantiles": {
                f"{share:g}": float(value) for share, value in zip(shares, values, strict=True)
            },
        }


def are_logits(predicted: Floats) -> bool:
    """Whether predictions ``(records, classes)`` are no probabilities of each, or of the second."""
    sums = predicted.sum(axis=1)
    are_shares = (sums <= 1).all() if predicted.shape[1] == 1 else np.allclose(sums, 1, atol=0.02)
    return not ((predicted >= 0).all() and are_shares)


def output_of(
    y: NDArray[Any], predictions: NDArray[Any], names: Sequence[str] = ()
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


# --- leaks and copies


def leaks_of(diagnostics: Diagnostics, columns: Mapping[str, NDArray[Any]]) -> list[str]:
    """A sentence for each of the ``columns`` of the first records that gives a target away."""
    leaks = [each for y in diagnostics.targets.values() for each in leaking_columns(columns, y)]
    return list(dict.fromkeys(leaks))


def copied(split: str, of_training: NDArray[np.int64], contents: NDArray[np.int64]) -> list[str]:
    """A sentence if records of the training are also in ``split``, by the contents of some.

    Records of a few values are often equal, and are not looked at.
    """
    if not len(of_training) or len(np.unique(of_training)) <= len(of_training) / 2:
        return []
    share = float(np.isin(of_training, contents).mean())
    if share < _COPIED:
        return []
    return [
        f"{share:.1%} of {len(of_training):,} records of the training are also in the split "
        f"{split!r}, as far as the model sees, so the metrics are better than those of new "
        "records: give copies one key or remove them from the data, or let the transform keep "
        "what distinguishes them"
    ]


def leaking_columns(columns: Mapping[str, NDArray[Any]], y: NDArray[Any]) -> list[str]:
    """One sentence for each column ``(records,)`` that alone predicts the target ``y``.

    ``y`` are classes ``(records,)`` or ``(records, classes)``, or numbers ``(records,)``.
    """
    if y.ndim > 1 and y.shape[1] > 1:
        y = y.argmax(axis=1)
    y = y.reshape(-1)
    if len(y) < _FEWEST or y.dtype.kind not in "fiub":
        return []
    target = y.astype(np.float64)
    are_classes = len(np.unique(target)) <= _CLASSES and not (target % 1).any()
    score, what = (_accuracy, "labels") if are_classes else (_explained, "variance")
    found = []
    for name, values in columns.items():
        values = values[: len(y)]
        if values.ndim != 1 or len(values) != len(y):
            continue
        share, constant = score(_parts(values), target)
        if share >= _SUSPECTED and 1 - share <= _LEFT * (1 - constant):
            found.append(
                f"the column {name!r} alone predicts {share:.1%} of the {what}: make sure that it "
                "is known when predictions are made, and not made of the label"
            )
    return found


def _parts(values: NDArray[Any]) -> NDArray[np.int64]:
    """The number of the value, or of the range of values, of each record."""
    unique, places = np.unique(values, return_inverse=True)
    if values.dtype.kind in "fiu" and len(unique) > _RANGES:
        numbers = np.nan_to_num(values.astype(np.float64), nan=np.inf)
        shares = np.arange(1, _RANGES) / _RANGES
        edges = np.unique(np.quantile(numbers[np.isfinite(numbers)], shares))
        return np.searchsorted(edges, numbers, side="right")
    return places


def _accuracy(parts: NDArray[np.int64], y: NDArray[Any]) -> tuple[float, float]:
    """The share of right labels in one half, by the most frequent label of each part of the other.

    Also that of the most frequent label of all.
    """
    classes, labels = np.unique(y, return_inverse=True)
    counts = np.zeros((parts.max() + 1, len(classes)), np.int64)
    np.add.at(counts, (parts[::2], labels[::2]), 1)
    most = counts.sum(axis=0).argmax()
    best = np.where(counts.any(axis=1), counts.argmax(axis=1), most)
    return float((best[parts[1::2]] == labels[1::2]).mean()), float((labels[1::2] == most).mean())


def _explained(parts: NDArray[np.int64], y: NDArray[Any]) -> tuple[float, float]:
    """The share of the variance of one half that the means of the parts of the other explain."""
    sums, counts = np.zeros(parts.max() + 1), np.zeros(parts.max() + 1)
    np.add.at(sums, parts[::2], y[::2])
    np.add.at(counts, parts[::2], 1)
    means = np.where(counts > 0, sums / np.maximum(counts, 1), y[::2].mean())
    variance = float(y[1::2].var())
    if not np.isfinite(variance) or variance == 0:
        return 0.0, 0.0
    return 1 - float(((y[1::2] - means[parts[1::2]]) ** 2).mean()) / variance, 0.0
