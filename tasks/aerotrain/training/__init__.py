"""Training of a compiled Keras model under one of TensorFlow's strategies.

Importing any module of this package first sets what TensorFlow and Keras read as they are imported:
the backend of Keras, and TensorFlow's log level. A replica does so before it imports its step, as
steps other than the training import TensorFlow first. It also hides what they import and no
training uses.
"""

import os
import sys
from collections.abc import MutableMapping
from importlib.abc import MetaPathFinder
from typing import Any


def set_environment(environment: MutableMapping[str, str]) -> None:
    """Set these variables in ``environment``, before TensorFlow and Keras are imported."""
    environment["KERAS_BACKEND"] = "tensorflow"
    # 2 keeps errors. At a lower level, each process starts with a dozen lines about drivers and
    # oneDNN.
    environment.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
    # Otherwise a process takes all memory of its GPUs, and none is left for an evaluation.
    environment.setdefault("TF_FORCE_GPU_ALLOW_GROWTH", "true")


class _Hider(MetaPathFinder):
    """Hides scikit-learn and SciPy from TensorFlow and Keras, which import them if they are there.

    They are a third of the CPU of all imports. ``keras.wrappers`` and an old Keras in TensorFlow
    use them; what else Keras uses of SciPy, it imports on use. tf_keras does not.
    """

    def find_spec(self, name: str, *_: Any) -> None:
        if name not in ("sklearn", "scipy") or "tf_keras" in sys.modules:
            return
        if _is_importing("tensorflow") or _is_importing("keras"):
            raise ModuleNotFoundError(f"{name} is hidden", name=name)


def _is_importing(name: str) -> bool:
    """Whether a module is being imported now.

    https://github.com/python/cpython/blob/v3.11.2/Lib/importlib/_bootstrap.py
    """
    return getattr(getattr(sys.modules.get(name), "__spec__", None), "_initializing", False)


set_environment(os.environ)
sys.meta_path.insert(0, _Hider())
