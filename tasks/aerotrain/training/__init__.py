"""How a compiled Keras model is trained under a strategy of TensorFlow's.

Importing any module of this package first settles what must be settled before TensorFlow
and Keras are loaded: which backend Keras runs on, and how much TensorFlow says.
"""

import os
from collections.abc import MutableMapping


def settle(environment: MutableMapping[str, str]) -> None:
    """Settle it in ``environment``, which TensorFlow and Keras read when they are loaded."""
    environment["KERAS_BACKEND"] = "tensorflow"
    # 2 keeps errors. Below it, each process opens with a dozen lines about drivers and oneDNN.
    environment.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")


settle(os.environ)
