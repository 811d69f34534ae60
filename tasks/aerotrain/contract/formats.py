"""The formats of an exported model, and how its numbers may be quantized."""

from collections.abc import Mapping, Sequence
from enum import StrEnum
from typing import Any

from aerotrain.contract.errors import SpecError, nearest


class Format(StrEnum):
    """A format of a model; each runs in a runtime of its own."""

    SAVEDMODEL = "savedmodel"
    LITERT = "litert"
    ONNX = "onnx"

    @property
    def file(self) -> str:
        """The model's file in the folder of a version, next to the SavedModel."""
        return _FILES[self]

    @property
    def packages(self) -> Sequence[str]:
        """The modules that convert to the format and run it; the extra of its name has them."""
        return _PACKAGES[self]


_FILES = {Format.LITERT: "model.tflite", Format.ONNX: "model.onnx"}
_PACKAGES: Mapping[Format, Sequence[str]] = {
    Format.SAVEDMODEL: (),
    Format.LITERT: ("ai_edge_litert",),
    Format.ONNX: ("onnx", "onnxruntime", "tf2onnx"),
}

#: Integers of 8 bits for weights and activations, scaled by the values of real records.
INT8 = "int8"


def formats_of(step: str, formats: Any, quantize: Any) -> list[Format]:
    """The formats besides the SavedModel, which every export has.

    Raises:
        SpecError: a format or ``quantize`` is not known; the message names the argument of
            ``step``.
    """
    if isinstance(formats, str) or not isinstance(formats, Sequence):
        raise SpecError(f"formats of {step} must be a list of formats, got {formats!r}")
    for each in formats:
        if each not in list(Format):
            raise SpecError(
                f"formats of {step} has {each!r}{nearest(each, list(Format))}; there are "
                f"{', '.join(Format)}"
            )
    found: list[Format] = [each for each in Format if each in formats and each != Format.SAVEDMODEL]
    if quantize not in (None, INT8):
        raise SpecError(f"quantize of {step} must be {INT8!r} or null, got {quantize!r}")
    if quantize and not found:
        raise SpecError(
            f"quantize of {step} is {quantize!r}, and the SavedModel is not quantized: name "
            f"'{Format.LITERT}' or '{Format.ONNX}' in formats too"
        )
    return found
