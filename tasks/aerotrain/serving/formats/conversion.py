"""Add other formats to an export: each is converted and verified in a process of its own."""

import json
from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from aerotrain.contract.errors import FinalError
from aerotrain.contract.steps import Format
from aerotrain.serving.formats.converter import FormatComparison
from aerotrain.serving.own_process import last_line, seconds_for

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
        words = ["-m", "aerotrain.serving.formats.converter", each, str(saved), str(file)]
        words += [str(check), str(tolerance), *([] if calibration is None else [str(calibration)])]
        try:
            found = json.loads(last_line(words, seconds_for(check)))
        except FinalError as error:
            raise FinalError(f"no export in the format '{each}': {error}") from None
        size = file.stat().st_size
        kind = "float" if calibration is None else "int8"
        print(f"{each} ({kind}, {size:,} bytes): {FormatComparison(**found)}", flush=True)
        about[each.value] = {"file": file.name, "bytes": size, "numbers": kind, **found}
    return about
