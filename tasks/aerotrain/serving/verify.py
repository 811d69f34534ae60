"""Verify a SavedModel in a separate process: ``python -m aerotrain.serving.verify SAVED CHECK``.

``CHECK`` is a file of ``write_part``, or a folder of such files, each with ``examples`` (strings,
each a ``tf.train.Example``), the ``inputs`` of the signature ``serving_default`` by name, and the
``outputs`` that are expected of both signatures, within ``tolerance``, absolute or relative.
Neither Keras nor other modules of this project are imported here, so a model that passes loads with
TensorFlow alone.
"""

import os
import pickle
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any


def verify(saved: Path, check: Path) -> list[str]:
    """One sentence for each output of each signature that differs from ``check``."""
    import tensorflow as tf

    loaded = tf.saved_model.load(str(saved))  # its functions do not keep its variables
    found = (each for part in parts(check) for each in _differences(tf, loaded.signatures, part))
    return list(dict.fromkeys(found))


def parts(check: Path) -> list[Path]:
    """The files of ``check``, in order."""
    return [check] if check.is_file() else sorted(check.iterdir())


def write_part(file: Path, **content: Any) -> None:
    """Write arrays by name, for a process of this machine."""
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_bytes(pickle.dumps(content))


def read_part(file: Path) -> dict[str, Any]:
    """What ``write_part`` wrote."""
    return pickle.loads(file.read_bytes())


def _differences(tf: Any, signatures: Any, file: Path) -> Iterator[str]:
    part = read_part(file)
    tensors, examples = signatures["serving_default"], signatures["serialized_examples"]
    inputs = {
        name: tf.constant(part["inputs"][name], spec.dtype)
        for name, spec in tensors.structured_input_signature[1].items()
    }
    # Every call draws random numbers from the seeds that were saved.
    states = [(each, each.numpy()) for each in tensors.variables if not each.trainable]
    given = {
        "serving_default": (tensors, inputs),
        "serialized_examples": (examples, {"examples": tf.constant(part["examples"])}),
    }
    for signature, (function, arguments) in given.items():
        outputs = function(**arguments)
        for variable, value in states:
            variable.assign(value)
        for name, expected in part["outputs"].items():
            if name not in outputs:
                yield f"{signature} has no output {name!r}, only {', '.join(outputs)}"
            elif not close(outputs[name].numpy(), expected, part["tolerance"]):
                yield f"{signature}'s output {name!r} differs from the trained model's"


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
    found = "; ".join(sentences) or "without Keras, both signatures give the same predictions"
    print(found, flush=True)
    os._exit(1 if sentences else 0)  # a normal exit takes a second to destroy what was imported


if __name__ == "__main__":
    main()
