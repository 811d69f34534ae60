"""Training of a compiled Keras model under one of TensorFlow's strategies.

Importing any module of this package first sets what TensorFlow and Keras read as they are imported:
the backend of Keras, and TensorFlow's log level. A replica does so before it imports its step, as
steps other than the training import TensorFlow first.
"""

import os
from collections.abc import MutableMapping


def set_environment(environment: MutableMapping[str, str]) -> None:
    """Set these variables in ``environment``, before TensorFlow and Keras are imported."""
    environment["KERAS_BACKEND"] = "tensorflow"
    # 2 keeps errors. At a lower level, each process starts with a dozen lines about drivers and
    # oneDNN.
    environment.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")


set_environment(os.environ)
