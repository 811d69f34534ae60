"""The names of a classifier's classes, which an export has in ``assets.extra/classes.json``.

TensorFlow Serving answers with numbers only. This file says what they mean::

    {"predictions": {"classes": ["no", "yes"], "threshold": 0.5}}

An output with a number for each class predicts the class of the greatest, without a threshold. One
with a single number predicts the second of two classes above the threshold.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from aerotrain.contract.errors import FinalError
from aerotrain.serving.versions import CLASSES

#: What follows the name of an output in that of the column of its classes.
SUFFIX = "_class"


@dataclass(frozen=True, kw_only=True)
class Classes:
    """The classes of an output, in the order of its values."""

    classes: Sequence[str]
    threshold: float | None = None

    def of(self, predictions: Any) -> pa.Array:
        """The class of each record by its predictions, null if they are not finite."""
        values = np.asarray(predictions, np.float64).reshape(len(predictions), -1)
        numbers = values.argmax(axis=1) if self.threshold is None else values[:, 0] > self.threshold
        unknown = ~np.isfinite(values).all(axis=1)
        indices = pa.array(numbers.astype(np.int32), mask=unknown)
        return pa.DictionaryArray.from_arrays(indices, pa.array(self.classes, pa.string()))


def are_labels(targets: Any, labels: Any) -> bool:
    """Whether ``targets`` are the numbers ``labels`` of classes, or one-hot, or smoothed."""
    values = np.asarray(targets).reshape(len(labels), -1)
    if values.dtype.kind not in "fiub":
        return False
    if values.shape[1] > 1:
        return bool((values.argmax(axis=1) == labels).all())
    values = values[:, 0]
    of_two_classes = bool(((values > 0.5) == labels).all()) and bool((abs(values) <= 1).all())
    return of_two_classes or bool((values == labels).all())


def classes_of(
    names: Sequence[str], outputs: Mapping[str, Any], targets: Mapping[str, Any], labels: Any
) -> dict[str, Classes]:
    """The classes of each of the outputs, ``(records, *shape)``, that predicts these ``names``.

    The ``targets`` of such an output are the ``labels`` of the same records. A single number is a
    probability, or a logit if some are not from 0 to 1.
    """
    found = {}
    for output, values in outputs.items():
        size = values.shape[1] if values.ndim == 2 else 1
        if values.ndim > 2 or values.dtype.kind != "f" or not names:
            continue
        if output not in targets or not are_labels(targets[output], labels):
            continue
        if size == len(names) > 1:
            found[output] = Classes(classes=names)
        elif size == 1 and len(names) == 2:
            are_logits = ((values < 0) | (values > 1)).any()
            found[output] = Classes(classes=names, threshold=0.0 if are_logits else 0.5)
    return found


def write_classes(saved: Path, classes: Mapping[str, Classes]) -> None:
    """Write the file of a SavedModel, if an output has classes."""
    if classes:
        document = {name: asdict(each) for name, each in classes.items()}
        text = json.dumps(document, indent=1, ensure_ascii=False)
        (saved / CLASSES).parent.mkdir(exist_ok=True)
        (saved / CLASSES).write_text(f"{text}\n", encoding="utf-8")


def classes_in(text: str | bytes) -> dict[str, Classes]:
    """What ``write_classes`` wrote."""
    return {name: Classes(**each) for name, each in json.loads(text).items()}


def check_classes(title: str, saved: Path, names: Sequence[str]) -> None:
    """Check that a SavedModel, which messages call ``title``, predicts the classes ``names``.

    Nothing is known of a model without the file, nor of a label without names.

    Raises:
        FinalError: it predicts other ones, or in another order.
    """
    if not names or not (saved / CLASSES).exists():
        return
    for each in classes_in((saved / CLASSES).read_bytes()).values():
        if list(each.classes) != list(names):
            raise FinalError(
                f"{title} predicts the classes {', '.join(each.classes)}, and the label of the "
                f"data has {', '.join(names)}: they cannot be compared; declare the same classes "
                "in the same order, or name another model"
            )
