"""Preloading: the imports of a training, in a process from which its replicas are forked.

A process that has preloaded runs no TensorFlow operation and has a single Python thread. It holds
about 500 MiB, which all processes forked from it share. ``fork_rules`` says which replicas may be.
"""

import gc
import importlib
import importlib.util
import os
import random
import sys
import tempfile
import threading
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import ModuleType
from typing import NoReturn

from aerotrain.contract.errors import TemporaryError
from aerotrain.supervisor.processes import open_files
from aerotrain.supervisor.replica_process import Preloaded

#: The imports of the steps that use TensorFlow, including Keras and the store's client.
IMPORTED = (
    "boto3",
    "numpy",
    "aerotrain.replica",
    "aerotrain.check",
    "aerotrain.training.train",
    "aerotrain.evaluation.evaluate",
    "aerotrain.serving.export",
    "aerotrain.prediction.partition",
    "aerotrain.prediction.plan",
    "aerotrain.store.s3",
    "aerotrain.training.chief",
    "aerotrain.training.hooks.validation",
    "aerotrain.training.servers",
)

#: Packages that make this process stale when another version of one is installed.
_PACKAGES = ("aerotrain", "tensorflow", "keras", "numpy")


def preload() -> Preloaded:
    """Import what a training imports, for the processes that are forked from this one.

    Raises:
        TemporaryError: an import has started threads, which no fork has.
    """
    before, opened = version(), {*open_files()}
    gc.disable()  # what is imported is no garbage, and searching it takes a fifth of the imports
    for name in IMPORTED:
        importlib.import_module(name)
    if threading.active_count() > 1:
        raise TemporaryError(
            f"an import has started threads, which no fork has: {threading.enumerate()}"
        )
    kept = {*open_files()} - opened
    gc.collect()
    gc.freeze()  # otherwise the first collection of each fork would copy all pages
    gc.enable()
    return Preloaded(_become_replica, kept, is_stale=lambda: version() != before)


def _become_replica(environment: Mapping[str, str], command: Sequence[str]) -> NoReturn:
    """Run ``python -m aerotrain.replica`` in this process, as a new interpreter would."""
    import numpy as np

    from aerotrain import replica

    os.environ.clear()
    os.environ.update(environment)
    tempfile.tempdir = None  # an import has set it; TMPDIR is the replica's own
    module: ModuleType = replica
    sys.modules["__main__"] = module
    sys.argv = [str(replica.__file__), *command[3:]]
    sys.path[0] = str(Path.cwd())
    random.seed()
    np.random.seed()
    replica.begin()
    replica.main()
    os._exit(0)


def version(sources: Path = Path(__file__).parent.parent) -> object:
    """A value that changes when a module below ``sources``, or one of the packages, changes."""
    files = [Path(sys.executable)]
    for name in _PACKAGES:
        spec = importlib.util.find_spec(name)
        if spec is not None and spec.origin:
            files.append(Path(spec.origin))
    files += sorted(sources.rglob("*.py"))
    return [(str(file), _changed(file)) for file in files]


def _changed(file: Path) -> int:
    """The time of the file's last change; 0 while it is being replaced."""
    try:
        return file.stat().st_mtime_ns
    except FileNotFoundError:
        return 0
