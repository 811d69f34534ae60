"""Convert a SavedModel to ONNX by tf2onnx, and run the result by ONNX Runtime."""

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from aerotrain.contract.errors import FinalError
from aerotrain.serving.own_process import last_line
from aerotrain.serving.signature import FILE, SIGNATURE, Arrays, Signature

#: The newest operator set that tf2onnx writes.
_OPSET = 18


def convert(saved: Path, file: Path, calibration: Sequence[Arrays]) -> None:
    """Write the signature ``serving_default`` of a SavedModel to ``file``.

    With ``calibration``, inputs of single records, weights and activations are int8 (QDQ):
    https://onnxruntime.ai/docs/performance/model-optimizations/quantization.html

    Raises:
        FinalError: the model cannot be converted; the message names the operations.
    """
    import onnx

    target = file.with_suffix(".float.onnx") if calibration else file
    # Only tf2onnx's command converts the tables of a SavedModel.
    words = ["-m", "tf2onnx.convert", "--saved-model", str(saved), "--signature_def", SIGNATURE]
    try:
        last = last_line([*words, "--opset", str(_OPSET), "--output", str(target)], seconds=None)
        if not target.exists():
            raise FinalError(last)
    except FinalError as error:
        raise FinalError(f"the model cannot be converted to ONNX: {error}") from None
    model = onnx.load(str(target))
    _check_operators(model)
    _name_inputs(saved, model)
    onnx.save(model, str(target))
    if calibration:
        _quantize(target, file, calibration)
        target.unlink()


def _check_operators(model: Any) -> None:
    """Raise ``FinalError`` if a node has no operator of ONNX: tf2onnx only logs that."""
    import onnx

    names = {n.op_type for n in model.graph.node if not onnx.defs.has(n.op_type, n.domain)}
    if names:
        raise FinalError(
            f"ONNX does not have the operation {', '.join(sorted(names))} of the model or its "
            "transform"
        )


def _name_inputs(saved: Path, model: Any) -> None:
    """Give the inputs the names that they have in the SavedModel: tf2onnx writes others.

    Its names differ in case and punctuation, as those of the arguments of TensorFlow's functions.
    """
    signature = Signature.parse("the model", (saved / FILE).read_bytes())
    proper = {_plain(name): name for name in signature.inputs}
    names = {each.name: proper.get(_plain(each.name), each.name) for each in model.graph.input}
    for each in model.graph.input:
        each.name = names[each.name]
    _rename(model.graph, names)


def _rename(graph: Any, names: Mapping[str, str]) -> None:
    """Rename what the nodes of a graph, and of the graphs in them, read."""
    for node in graph.node:
        node.input[:] = [names.get(each, each) for each in node.input]
        for attribute in node.attribute:
            if attribute.HasField("g"):
                _rename(attribute.g, names)


def _plain(name: str) -> str:
    return re.sub(r"[^a-z0-9]", "_", name.lower())


def _quantize(source: Path, target: Path, calibration: Sequence[Arrays]) -> None:
    from onnxruntime.quantization import CalibrationDataReader, QuantFormat, quantize_static
    from onnxruntime.quantization.shape_inference import quant_pre_process

    class Records(CalibrationDataReader):  # type: ignore[misc]
        def __init__(self) -> None:
            self._records: Iterator[Arrays] = map(_fed, calibration)

        def get_next(self) -> Arrays | None:
            return next(self._records, None)

    prepared = source.with_suffix(".prepared.onnx")
    try:
        quant_pre_process(str(source), str(prepared), skip_symbolic_shape=True)
        quantize_static(
            str(prepared), str(target), Records(), quant_format=QuantFormat.QDQ, per_channel=True
        )
    except Exception as error:
        raise FinalError(f"ONNX Runtime cannot quantize the model: {error}") from error
    finally:
        prepared.unlink(missing_ok=True)


def load(file: Path) -> Callable[[Arrays], Arrays]:
    """The converted model in ONNX Runtime: outputs of a batch of inputs, by name."""
    import onnxruntime

    session = onnxruntime.InferenceSession(str(file))
    names = [each.name for each in session.get_outputs()]

    def predict(inputs: Arrays) -> Arrays:
        try:
            outputs = session.run(None, _fed(inputs))
        except Exception as error:
            # tf2onnx converts the comparison of text to one of numbers.
            text = "the model or its transform compares text, which ONNX cannot; " * (
                "stoll" in str(error)
            )
            raise FinalError(f"{text}ONNX Runtime says: {error}") from error
        return dict(zip(names, outputs, strict=True))

    return predict


def _fed(inputs: Arrays) -> Arrays:
    """The inputs as ONNX Runtime takes them: text as ``str``."""
    return {
        name: np.vectorize(bytes.decode, otypes=[object])(each) if each.dtype == object else each
        for name, each in inputs.items()
    }
