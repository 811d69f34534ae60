"""Which backend a task uses: the run's choice, or else the administrator's.

The name of a launcher is that of its folder here, whose ``chosen`` makes the backend.
"""

from importlib import import_module
from typing import Any

from aerotrain_airflow.backends.launcher import Launcher
from aerotrain_airflow.settings import Settings


def choose_launcher(settings: Settings, holder: str) -> Launcher[Any]:
    """The launcher that the settings name; ``holder`` is the task try that will use it.

    Raises:
        FinalError: what that launcher needs is not set.
    """
    # Loaded where it is used: a client may cost a second that no other launcher has to wait for.
    module = import_module(f"aerotrain_airflow.backends.{settings.launcher}.chosen")
    return Launcher(module.chosen(settings, holder))
