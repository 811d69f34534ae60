"""Convert a SavedModel and verify the result, in a process of its own.

``python -m aerotrain.serving.formats.converter FORMAT SAVED FILE CHECK TOLERANCE [CALIBRATION]``

``CHECK`` is a folder as ``aerotrain.serving.verify`` describes it; ``CALIBRATION`` is one with the
``inputs`` of records by which the model is quantized. The last line printed is a
``FormatComparison`` as JSON, or, with the exit code of a ``FinalError``, its sentence.
"""

import json
import sys
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from importlib import import_module
from pathlib import Path
from typing import Any, Protocol

import numpy as np

from aerotrain.contract.errors import ExitCode, FinalError
from aerotrain.contract.steps import Format
from aerotrain.serving.signature import Arrays
from aerotrain.serving.verify import arrays, close, parts


class Runtime(Protocol):
    """A converted model in the runtime of its format."""

    def predict(self, inputs: Arrays) -> Arrays:
        """The outputs by name of a batch of inputs."""


def runtime(model_format: Format, file: Path) -> Runtime:
    """The model in ``file`` in the runtime of its format.

    Raises:
        FinalError: the runtime does not load it.
    """
    try:
        return _module(model_format).Runtime(file)
    except Exception as error:
        raise FinalError(f"the runtime of {model_format} cannot load the model: {error}") from error


def _module(model_format: Format) -> Any:
    return import_module(f"aerotrain.serving.formats.to_{model_format}")


@dataclass(frozen=True)
class FormatComparison:
    """How the predictions of a converted model differ from those of the trained model.

    Differences are relative to the range of values that an output has over the records, the largest
    over all outputs. ``same_class`` is the share of records of which every output with classes, in
    its last axis, has its largest value at the same class; None without such outputs.
    """

    records: int
    tolerance: float
    mean_difference: float
    largest_difference: float
    same_class: float | None

    def __str__(self) -> str:
        same = "" if self.same_class is None else f", {self.same_class:.1%} the same class"
        return (
            f"of {self.records} records, predictions differ by {self.mean_difference:.2g} of their "
            f"range in the mean and {self.largest_difference:.2g} at most{same}"
        )


def compare(
    expected: Sequence[Arrays], given: Sequence[Arrays], tolerance: float, *, quantized: bool
) -> FormatComparison:
    """Compare predictions, in parts.

    Without ``quantized``, each value may differ by ``tolerance``, absolute or relative. With it,
    the mean difference of an output may be ``tolerance`` of its range.

    Raises:
        FinalError: an output is missing, has another shape, or differs by more.
    """
    means, most, same, differing = [0.0], [0.0], [], []
    for name in expected[0]:
        if name not in given[0]:
            raise FinalError(f"there is no output {name!r}, only {', '.join(given[0])}")
        shapes = {each[name].shape[1:] for each in (*expected, *given)}
        if len(shapes) > 1:
            raise FinalError(f"the output {name!r} has another shape: {shapes}")
        theirs = np.concatenate([each[name] for each in expected]).astype(np.float64)
        ours = np.concatenate([each[name] for each in given]).astype(np.float64)
        if lost := int((np.isnan(ours) & ~np.isnan(theirs)).sum()):
            raise FinalError(
                f"the output {name!r} is NaN in {lost:,} of {ours.size:,} values that are numbers "
                "in the trained model: look in the model and its transform for an operation that "
                "the format computes otherwise, such as tf.math.is_finite"
            )
        difference = np.abs(ours - theirs) / (np.ptp(theirs) or np.abs(theirs).max() or 1.0)
        means.append(float(difference.mean()))
        most.append(float(difference.max()))
        if theirs.ndim > 1 and theirs.shape[-1] > 1:
            alike = theirs.argmax(-1) == ours.argmax(-1)
            same.append(alike.reshape(len(alike), -1).all(axis=1))
        if not (means[-1] <= tolerance if quantized else close(ours, theirs, tolerance)):
            differing.append(name)
    comparison = FormatComparison(
        records=sum(len(next(iter(each.values()))) for each in expected),
        tolerance=tolerance,
        mean_difference=max(means),
        largest_difference=max(most),
        same_class=float(np.logical_and.reduce(same).mean()) if same else None,
    )
    if differing:
        raise FinalError(
            f"the outputs {', '.join(map(repr, differing))} differ from the trained model's by "
            f"more than the tolerance of {tolerance:g}: {comparison}"
            + "; a tensor with values of very different sizes loses most in 8 bits"
            * quantized
        )
    return comparison


def convert(
    model_format: Format,
    saved: Path,
    file: Path,
    check: Path,
    tolerance: float,
    calibration: Path | None,
) -> FormatComparison:
    """Convert the model, and compare its predictions in its runtime with those in ``check``.

    Raises:
        FinalError: it cannot be converted, or see ``compare``.
    """
    _module(model_format).convert(
        saved, file, list(_single_records(calibration)) if calibration else []
    )
    converted = runtime(model_format, file)
    given, expected = [], []
    for part in parts(check):
        inputs = arrays(part / "inputs")
        try:
            given.append(converted.predict(inputs))
        except Exception as error:
            raise FinalError(
                f"the runtime of {model_format} cannot run the model: {error}"
            ) from error
        expected.append(arrays(part / "outputs"))
    return compare(expected, given, tolerance, quantized=calibration is not None)


def _single_records(folder: Path) -> Iterator[Arrays]:
    """The inputs of each of the records in a folder."""
    inputs = arrays(folder / "inputs")
    for record in range(len(next(iter(inputs.values())))):
        yield {name: value[record : record + 1] for name, value in inputs.items()}


def main() -> None:
    """Convert and verify as the command line says."""
    name, saved, file, check, tolerance, *calibration = sys.argv[1:]
    try:
        comparison = convert(
            Format(name),
            Path(saved),
            Path(file),
            Path(check),
            float(tolerance),
            Path(calibration[0]) if calibration else None,
        )
    except FinalError as error:
        print(" ".join(str(error).split()))
        sys.exit(ExitCode.FINAL)
    print(json.dumps(asdict(comparison)))


if __name__ == "__main__":
    main()
