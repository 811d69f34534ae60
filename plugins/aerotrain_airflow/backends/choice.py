"""Chooses the backend of a task: the run's choice, or else the administrator's.

The name of a launcher is that of its folder here, whose module ``chosen`` creates the backend.
"""

from importlib import import_module
from typing import Any

from aerotrain_airflow.backends.launcher import Launcher
from aerotrain_airflow.settings import Settings


def choose_launcher(settings: Settings, holder: str) -> Launcher[Any]:
    """The launcher that the settings name; ``holder`` is the task try that will use it.

    Raises:
        FinalError: a setting that this launcher needs is missing.
    """
    # Imported on use: a client library may take a second to import, which other launchers do not
    # need.
    module = import_module(f"aerotrain_airflow.backends.{settings.launcher}.chosen")
    return Launcher(module.chosen(settings, holder))
