"""Convert a SavedModel to LiteRT (https://ai.google.dev/edge/litert), and run the result."""

import re
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import tensorflow as tf

from aerotrain.contract.errors import FinalError
from aerotrain.serving.signature import SIGNATURE, Arrays

#: What the converter says of operations that LiteRT does not have.
_LACKING = re.compile(r"(?:TF Select|Custom) ops: ([\w, ]+)|'tf\.(\w+)' op")

#: Its lines about operations that would exist for another type than float64.
_OF_FLOAT64 = re.compile(r"tf\.(\w+)\([^)]*xf64")


def convert(saved: Path, file: Path, calibration: Sequence[Arrays]) -> None:
    """Write the signature ``serving_default`` of a SavedModel to ``file``.

    With ``calibration``, inputs of single records, weights and activations are int8 where LiteRT
    has such an operation; inputs and outputs keep their dtypes:
    https://ai.google.dev/edge/litert/models/post_training_quantization

    Raises:
        FinalError: the model cannot be converted; the message names the operations.
    """
    converter = tf.lite.TFLiteConverter.from_saved_model(str(saved), signature_keys=[SIGNATURE])
    if calibration:

        def records() -> Iterator[tuple[str, Arrays]]:
            return ((SIGNATURE, each) for each in calibration)

        converter.optimizations = [tf.lite.Optimize.DEFAULT]
        converter.representative_dataset = records
    try:
        content = converter.convert()
    except Exception as error:
        raise FinalError(_sentence(str(error))) from error
    file.write_bytes(content)


def _sentence(error: str) -> str:
    found = {name for each in _LACKING.findall(error) for name in re.split(r", *", "".join(each))}
    if found:
        wide = set(_OF_FLOAT64.findall(error)) & found
        shown = ", ".join(f"{name} of float64" if name in wide else name for name in sorted(found))
        loops = any(name.startswith("TensorList") for name in found)
        layers = ": recurrent layers and other loops are made of it" if loops else ""
        return f"LiteRT does not have the operation {shown} of the model or its transform{layers}"
    return f"the model cannot be converted to LiteRT: {error.strip().partition(chr(10))[0]}"


def load(file: Path) -> Callable[[Arrays], Arrays]:
    """The converted model in LiteRT's interpreter: outputs of a batch of inputs, by name."""
    from ai_edge_litert.interpreter import Interpreter

    interpreter = Interpreter(model_path=str(file))

    def predict(inputs: Arrays) -> Arrays:
        return dict(interpreter.get_signature_runner(SIGNATURE)(**inputs))

    return predict
