"""Verify a SavedModel in a separate process: ``python -m aerotrain.serving.verify SAVED CHECK``.

``CHECK`` is a folder of serialized tensors, or of such folders: ``examples`` (strings, each a
``tf.train.Example``), ``inputs/FILE`` for each input of the signature ``serving_default``, and
``outputs/FILE``, the expected outputs of both signatures, within ``tolerance``, absolute or
relative. ``file_of`` is the file of a name. Neither Keras nor other modules of this project are
imported here, so a model that passes loads with TensorFlow alone.
"""

import os
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any
from urllib.parse import quote, unquote

#: The suffix of a file of a tensor, which may be called ``..``.
_SUFFIX = ".tensor"


def verify(saved: Path, check: Path) -> list[str]:
    """One sentence for each output of each signature that differs from ``check``."""
    import tensorflow as tf

    loaded = tf.saved_model.load(str(saved))  # its functions do not keep its variables
    signatures = loaded.signatures
    return list(
        dict.fromkeys(each for part in parts(check) for each in _differences(tf, signatures, part))
    )


def parts(check: Path) -> list[Path]:
    """The folders of tensors in ``check``, in order."""
    return [check] if (check / "examples").exists() else sorted(check.iterdir())


def file_of(name: str) -> str:
    """The name of the file of an input or output, whose own name may have slashes."""
    return quote(name, safe="") + _SUFFIX


def _name_of(file: Path) -> str:
    return unquote(file.name.removesuffix(_SUFFIX))


def arrays(folder: Path) -> dict[str, Any]:
    """The arrays by name of the tensors in a folder."""
    import tensorflow as tf
    from tensorflow.core.framework import tensor_pb2

    return {
        _name_of(file): tf.make_ndarray(tensor_pb2.TensorProto.FromString(file.read_bytes()))
        for file in sorted(folder.iterdir())
    }


def _differences(tf: Any, signatures: Any, check: Path) -> Iterator[str]:
    tensors, examples = signatures["serving_default"], signatures["serialized_examples"]
    inputs = {
        name: _read(tf, check / "inputs" / file_of(name), spec.dtype)
        for name, spec in tensors.structured_input_signature[1].items()
    }
    # Every call draws random numbers from the seeds that were saved.
    states = [(each, each.numpy()) for each in tensors.variables if not each.trainable]
    given = {"serving_default": tensors(**inputs)}
    _restore(states)
    given["serialized_examples"] = examples(examples=_read(tf, check / "examples", tf.string))
    _restore(states)
    tolerance = float((check / "tolerance").read_text())
    for signature, outputs in given.items():
        for file in sorted((check / "outputs").iterdir()):
            name = _name_of(file)
            if name not in outputs:
                yield f"{signature} has no output {name!r}, only {', '.join(outputs)}"
                continue
            value = outputs[name]
            expected = _read(tf, file, value.dtype)
            if not close(value.numpy(), expected.numpy(), tolerance):
                yield f"{signature}'s output {name!r} differs from the trained model's"


def _restore(states: Iterable[tuple[Any, Any]]) -> None:
    for variable, value in states:
        variable.assign(value)


def _read(tf: Any, file: Path, dtype: Any) -> Any:
    return tf.io.parse_tensor(file.read_bytes(), dtype)


def close(value: Any, expected: Any, tolerance: float) -> bool:
    """Whether two arrays are equal within ``tolerance``, absolute or relative."""
    import numpy as np

    if value.shape != expected.shape:
        return False
    if value.dtype.kind in "biuSUO":
        return bool((value == expected).all())
    # NumPy cannot compare narrow types such as bfloat16.
    one, other = value.astype(np.float64), expected.astype(np.float64)
    return np.allclose(one, other, rtol=tolerance, atol=tolerance, equal_nan=True)


def main() -> None:
    """Verify the model that the command line names; the last line printed is the result."""
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
    for name in ("keras", "tf_keras"):
        sys.modules[name] = None  # type: ignore[assignment]  # makes its import fail
    sentences = verify(Path(sys.argv[1]), Path(sys.argv[2]))
    said = "; ".join(sentences) or "without Keras, both signatures give the same predictions"
    print(said, flush=True)
    os._exit(1 if sentences else 0)  # a normal exit takes a second to destroy what was imported


if __name__ == "__main__":
    main()
