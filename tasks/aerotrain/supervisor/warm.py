"""Turns a forked process with a replica's imports into a replica, as a new interpreter would be."""

import os
import random
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import ModuleType
from typing import NoReturn

import numpy as np

from aerotrain import replica, training


def become_replica(environment: Mapping[str, str], command: Sequence[str]) -> NoReturn:
    """Run ``python -m aerotrain.replica`` in this process, which has just been forked."""
    os.environ.clear()
    os.environ.update(environment)
    training.settle(os.environ)  # importing the package does this, but it is already imported
    module: ModuleType = replica
    sys.modules["__main__"] = module
    sys.argv = [str(replica.__file__), *command[3:]]
    sys.path[0] = str(Path.cwd())
    random.seed()
    np.random.seed()
    replica.begin()
    replica.main()
    os._exit(0)
