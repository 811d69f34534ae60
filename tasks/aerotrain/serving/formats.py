"""Other formats of an exported model, LiteRT and ONNX: each is verified in its own runtime.

``convert`` runs this module in a process for each format, because a converter may crash::

    python -m aerotrain.serving.formats FORMAT SAVED FILE CHECK TOLERANCE CALIBRATION

``CHECK`` is as ``aerotrain.serving.verify`` describes it; ``CALIBRATION`` is a file with the
``inputs`` of records by which the model is quantized, or empty. The last line printed is what
``compare`` returns as JSON, or, with the exit code of a ``FinalError``, its sentence. A format that
lacks one of the model's operations is refused with its name.
"""

import json
import re
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np

from aerotrain.contract.errors import ExitCode, FinalError
from aerotrain.contract.steps import Format
from aerotrain.serving.own_process import last_line, seconds_for
from aerotrain.serving.signature import FILE, SIGNATURE, Arrays, Signature
from aerotrain.serving.verify import close, parts, read_part

#: The accepted difference of predictions. Another runtime sums in another order; the predictions of
#: a quantized model differ in the mean by this share of their range.
TOLERANCE, QUANTIZED_TOLERANCE = 1e-4, 0.05

#: The newest operator set that tf2onnx writes.
_OPSET = 18

#: What the converter says of operations that LiteRT does not have.
_LACKING = re.compile(r"(?:TF Select|Custom) ops: ([\w, ]+)|'tf\.(\w+)' op")


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
        What is known of each format, for the manifest of the version.

    Raises:
        FinalError: the model cannot be converted, or its predictions differ by more than
            ``tolerance``; nothing was published.
    """
    if tolerance is None:
        tolerance = TOLERANCE if calibration is None else QUANTIZED_TOLERANCE
    numbers = "float" if calibration is None else "int8"
    about = {}
    for each in formats:
        file = saved / each.file
        words = ["-m", "aerotrain.serving.formats", each, str(saved), str(file)]
        words += [str(check), str(tolerance), str(calibration or "")]
        try:
            found = json.loads(last_line(words, seconds_for(check)))
        except FinalError as error:
            raise FinalError(f"no export in the format '{each}': {error}") from None
        size = file.stat().st_size
        print(f"{each} ({numbers}, {size:,} bytes): {_sentence(found)}", flush=True)
        about[each.value] = {"file": file.name, "bytes": size, "numbers": numbers, **found}
    return about


def predictor(model_format: Format, file: Path) -> Callable[[Arrays], Arrays]:
    """The model in ``file``, in the runtime of its format: outputs of a batch of inputs, by name.

    Raises:
        FinalError: the runtime does not load it.
    """
    try:
        return _litert(file) if model_format == Format.LITERT else _onnx(file)
    except Exception as error:
        raise FinalError(f"the runtime of {model_format} cannot load the model: {error}") from error


def compare(
    expected: Sequence[Arrays], given: Sequence[Arrays], tolerance: float, *, quantized: bool
) -> dict[str, Any]:
    """Compare predictions, in parts.

    Without ``quantized``, each value may differ by ``tolerance``, absolute or relative. With it,
    the mean difference of an output may be ``tolerance`` of its range.

    Returns:
        The number of ``records``, the ``tolerance``, and the ``mean_difference`` and
        ``largest_difference`` of the worst output, relative to the range of its values.
        ``same_class`` is the share of records of which every output with classes, in its last axis,
        has its largest value at the same class; None without such outputs.

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
            differing.append(repr(name))
    found = {
        "records": sum(len(next(iter(each.values()))) for each in expected),
        "tolerance": tolerance,
        "mean_difference": max(means),
        "largest_difference": max(most),
        "same_class": float(np.logical_and.reduce(same).mean()) if same else None,
    }
    if differing:
        raise FinalError(
            f"the outputs {', '.join(differing)} differ from the trained model's by more than the "
            f"tolerance of {tolerance:g}: {_sentence(found)}"
            + "; a tensor with values of very different sizes loses most in 8 bits"
            * quantized
        )
    return found


def _sentence(found: Mapping[str, Any]) -> str:
    same = "" if found["same_class"] is None else f", {found['same_class']:.1%} the same class"
    return (
        f"of {found['records']} records, predictions differ by {found['mean_difference']:.2g} of "
        f"their range in the mean and {found['largest_difference']:.2g} at most{same}"
    )


# --- LiteRT: https://ai.google.dev/edge/litert


def _to_litert(saved: Path, file: Path, calibration: Sequence[Arrays]) -> None:
    """Write the signature ``serving_default`` of a SavedModel to ``file``.

    With ``calibration``, inputs of single records, weights and activations are int8 where LiteRT
    has such an operation; inputs and outputs keep their dtypes:
    https://ai.google.dev/edge/litert/models/post_training_quantization
    """
    import tensorflow as tf

    converter = tf.lite.TFLiteConverter.from_saved_model(str(saved), signature_keys=[SIGNATURE])
    if calibration:
        converter.optimizations = [tf.lite.Optimize.DEFAULT]
        converter.representative_dataset = lambda: ((SIGNATURE, each) for each in calibration)
    try:
        file.write_bytes(converter.convert())
    except Exception as error:
        found = [re.split(r", *", "".join(each)) for each in _LACKING.findall(str(error))]
        if names := sorted({name for each in found for name in each}):
            raise FinalError(
                f"LiteRT does not have the operation {', '.join(names)} of the model or its "
                "transform; it also has no arithmetic of float64, and no TensorList, of which "
                "recurrent layers and other loops are made"
            ) from error
        line = str(error).strip().partition("\n")[0]
        raise FinalError(f"the model cannot be converted to LiteRT: {line}") from error


def _litert(file: Path) -> Callable[[Arrays], Arrays]:
    from ai_edge_litert.interpreter import Interpreter

    interpreter = Interpreter(model_path=str(file))
    return lambda inputs: dict(interpreter.get_signature_runner(SIGNATURE)(**inputs))


# --- ONNX: by tf2onnx and ONNX Runtime


def _to_onnx(saved: Path, file: Path, calibration: Sequence[Arrays]) -> None:
    """Write the signature ``serving_default`` of a SavedModel to ``file``.

    With ``calibration``, inputs of single records, weights and activations are int8 (QDQ):
    https://onnxruntime.ai/docs/performance/model-optimizations/quantization.html
    """
    import onnx

    # Only tf2onnx's command converts the tables of a SavedModel.
    words = ["-m", "tf2onnx.convert", "--saved-model", str(saved), "--signature_def", SIGNATURE]
    try:
        last = last_line([*words, "--opset", str(_OPSET), "--output", str(file)], seconds=None)
        if not file.exists():
            raise FinalError(last)
    except FinalError as error:
        raise FinalError(f"the model cannot be converted to ONNX: {error}") from None
    model = onnx.load(str(file))
    # tf2onnx only logs that a node has no operator of ONNX.
    names = {n.op_type for n in model.graph.node if not onnx.defs.has(n.op_type, n.domain)}
    if names:
        raise FinalError(
            f"ONNX does not have the operation {', '.join(sorted(names))} of the model or its "
            "transform"
        )
    # tf2onnx changes the case and the punctuation of the names of inputs.
    signature = Signature.parse("the model", (saved / FILE).read_bytes())
    proper = {_plain(name): name for name in signature.inputs}
    renamed = {each.name: proper.get(_plain(each.name), each.name) for each in model.graph.input}
    for each in model.graph.input:
        each.name = renamed[each.name]
    _rename(model.graph, renamed)
    onnx.save(model, str(file))
    if calibration:
        _quantize(file, calibration)


def _plain(name: str) -> str:
    return re.sub(r"[^a-z0-9]", "_", name.lower())


def _rename(graph: Any, names: Mapping[str, str]) -> None:
    """Rename what the nodes of a graph, and of the graphs in them, read."""
    for node in graph.node:
        node.input[:] = [names.get(each, each) for each in node.input]
        for attribute in node.attribute:
            if attribute.HasField("g"):
                _rename(attribute.g, names)


def _quantize(file: Path, calibration: Sequence[Arrays]) -> None:
    from onnxruntime.quantization import CalibrationDataReader, QuantFormat, quantize_static
    from onnxruntime.quantization.shape_inference import quant_pre_process

    class Records(CalibrationDataReader):  # type: ignore[misc]
        def __init__(self) -> None:
            self._records: Iterator[Arrays] = map(_fed, calibration)

        def get_next(self) -> Arrays | None:
            return next(self._records, None)

    prepared = file.with_suffix(".prepared.onnx")
    try:
        quant_pre_process(str(file), str(prepared), skip_symbolic_shape=True)
        quantize_static(
            str(prepared), str(file), Records(), quant_format=QuantFormat.QDQ, per_channel=True
        )
    except Exception as error:
        raise FinalError(f"ONNX Runtime cannot quantize the model: {error}") from error
    finally:
        prepared.unlink(missing_ok=True)


def _onnx(file: Path) -> Callable[[Arrays], Arrays]:
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


# --- the process


def _converted(
    model_format: Format,
    saved: Path,
    file: Path,
    check: Path,
    tolerance: float,
    calibration: Path | None,
) -> dict[str, Any]:
    """Convert the model, and compare its predictions in its runtime with those in ``check``."""
    records: list[Arrays] = []
    if calibration:
        inputs = read_part(calibration)["inputs"]
        count = len(next(iter(inputs.values())))
        records = [{n: each[row : row + 1] for n, each in inputs.items()} for row in range(count)]
    (_to_litert if model_format == Format.LITERT else _to_onnx)(saved, file, records)
    predict = predictor(model_format, file)
    given, expected = [], []
    for part in map(read_part, parts(check)):
        try:
            given.append(predict(part["inputs"]))
        except Exception as error:
            raise FinalError(
                f"the runtime of {model_format} cannot run the model: {error}"
            ) from error
        expected.append(part["outputs"])
    return compare(expected, given, tolerance, quantized=calibration is not None)


def main() -> None:
    """Convert and verify as the command line says."""
    name, *folders, tolerance, calibration = sys.argv[1:]
    saved, file, check = map(Path, folders)
    records = Path(calibration) if calibration else None
    try:
        found = _converted(Format(name), saved, file, check, float(tolerance), records)
    except FinalError as error:
        print(" ".join(str(error).split()))
        sys.exit(ExitCode.FINAL)
    print(json.dumps(found))


if __name__ == "__main__":
    main()
