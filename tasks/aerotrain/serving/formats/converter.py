"""Add other formats to an export: each is converted and verified in a process of its own.

``python -m aerotrain.serving.formats.converter FORMAT SAVED FILE CHECK TOLERANCE CALIBRATION``

``CHECK`` is as ``aerotrain.serving.verify`` describes it; ``CALIBRATION`` is a file with the
``inputs`` of records by which the model is quantized, or empty. The last line printed is a
``FormatComparison`` as JSON, or, with the exit code of a ``FinalError``, its sentence.
"""

import json
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np

from aerotrain.contract.errors import ExitCode, FinalError
from aerotrain.contract.steps import Format
from aerotrain.serving.own_process import last_line, seconds_for
from aerotrain.serving.signature import Arrays
from aerotrain.serving.verify import close, parts, read_part

_MODULE = "aerotrain.serving.formats.converter"

#: The accepted difference of predictions. Another runtime sums in another order; the predictions of
#: a quantized model differ in the mean by this share of their range.
TOLERANCE, QUANTIZED_TOLERANCE = 1e-4, 0.05


def check_installed(formats: Sequence[Format]) -> None:
    """Raise ``FinalError`` if a package is missing that a format needs."""
    for each in formats:
        if missing := [name for name in each.packages if find_spec(name) is None]:
            raise FinalError(
                f"an export in the format '{each}' needs the package {missing[0]}, which is not "
                f"installed here: add the extra aerotrain[{each}] to the training image or "
                "environment"
            )


def convert(
    formats: Sequence[Format],
    saved: Path,
    check: Path,
    *,
    tolerance: float | None,
    calibration: Path | None,
) -> dict[str, Any]:
    """Write the model in each format next to the SavedModel in ``saved``.

    ``check`` has the records and predictions that ``aerotrain.serving.verify`` compares.
    ``calibration`` has records by which the formats are quantized to int8; None if they are not.

    Returns:
        What is known of each format, for people and for ``metrics.json``.

    Raises:
        FinalError: the model cannot be converted, or its predictions differ by more than
            ``tolerance``; nothing was published.
    """
    if tolerance is None:
        tolerance = TOLERANCE if calibration is None else QUANTIZED_TOLERANCE
    about = {}
    for each in formats:
        file = saved / each.file
        words = ["-m", _MODULE, each, str(saved), str(file)]
        words += [str(check), str(tolerance), str(calibration or "")]
        try:
            found = json.loads(last_line(words, seconds_for(check)))
        except FinalError as error:
            raise FinalError(f"no export in the format '{each}': {error}") from None
        size = file.stat().st_size
        kind = "float" if calibration is None else "int8"
        print(f"{each} ({kind}, {size:,} bytes): {FormatComparison(**found)}", flush=True)
        about[each.value] = {"file": file.name, "bytes": size, "numbers": kind, **found}
    return about


def predictor(model_format: Format, file: Path) -> Callable[[Arrays], Arrays]:
    """The model in ``file``, in the runtime of its format: outputs of a batch of inputs, by name.

    Raises:
        FinalError: the runtime does not load it.
    """
    try:
        return _module(model_format).load(file)
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


def _convert(
    model_format: Format,
    saved: Path,
    file: Path,
    check: Path,
    tolerance: float,
    calibration: Path | None,
) -> FormatComparison:
    """Convert the model, and compare its predictions in its runtime with those in ``check``."""
    records = list(_single_records(calibration)) if calibration else []
    _module(model_format).convert(saved, file, records)
    predict = predictor(model_format, file)
    given, expected = [], []
    for part in parts(check):
        content = read_part(part)
        try:
            given.append(predict(content["inputs"]))
        except Exception as error:
            raise FinalError(
                f"the runtime of {model_format} cannot run the model: {error}"
            ) from error
        expected.append(content["outputs"])
    return compare(expected, given, tolerance, quantized=calibration is not None)


def _single_records(file: Path) -> Iterator[Arrays]:
    """The inputs of each of the records in a file."""
    inputs = read_part(file)["inputs"]
    for record in range(len(next(iter(inputs.values())))):
        yield {name: value[record : record + 1] for name, value in inputs.items()}


def main() -> None:
    """Convert and verify as the command line says."""
    name, *folders, tolerance, calibration = sys.argv[1:]
    saved, file, check = map(Path, folders)
    records = Path(calibration) if calibration else None
    try:
        comparison = _convert(Format(name), saved, file, check, float(tolerance), records)
    except FinalError as error:
        print(" ".join(str(error).split()))
        sys.exit(ExitCode.FINAL)
    print(json.dumps(asdict(comparison)))


if __name__ == "__main__":
    main()
