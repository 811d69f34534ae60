"""A model that consists mostly of one layer of 256 MiB, in a process of limited memory.

``memory_mib`` of ``hparams`` is how much more memory than now the process may take.
"""

import resource
from pathlib import Path

import keras
from small import transform  # noqa: F401 -- it is this module's transform too


def build_model(hparams):
    if "memory_mib" in hparams:
        limit = mapped() + hparams["memory_mib"] * 2**20
        resource.setrlimit(resource.RLIMIT_DATA, (limit, limit))
    model = keras.Sequential(
        [
            keras.Input((8, 8)),
            keras.layers.Flatten(),
            keras.layers.Dense(1024, activation="relu"),
            keras.layers.Dense(65536, activation="relu", name="wide"),
            keras.layers.Dense(10, kernel_initializer="zeros", name="top"),
        ]
    )
    model.compile(
        keras.optimizers.SGD(0.0001),
        keras.losses.SparseCategoricalCrossentropy(from_logits=True),
        metrics=["accuracy"],
    )
    return model


def mapped():
    """The bytes of this process that the limit counts."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return 1024 * next(int(line.split()[1]) for line in lines if line.startswith("VmData"))
