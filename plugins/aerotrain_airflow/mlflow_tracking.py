"""Records trainings, evaluations and versions in MLflow, if the setting ``mlflow`` has its URI.

A listener does it when a task has ended and Airflow has its state, so no task waits for MLflow.
What is recorded is a value (``mlflow_records.py``), which another process writes within limited
time (``mlflow_writer.py``). If MLflow fails, the task's log has one warning.
"""

import re
import subprocess
import sys
from typing import Any

import structlog
from airflow.listeners import hookimpl

from aerotrain.contract.errors import FinalError
from aerotrain_airflow.mlflow_writer import Record
from aerotrain_airflow.settings import Settings

#: Seconds in which a task must be written. Most of it is for the import of MLflow on a busy
#: machine: a server that does not answer costs 4 s. Airflow ends a task 20 s after its success.
_SECONDS = 15.0

_LOG = structlog.get_logger(__name__)


class MlflowListener:
    """Airflow calls it in the task's own process, when it has the task's state."""

    @hookimpl
    def on_task_instance_success(self, task_instance: Any) -> None:
        record(task_instance)

    @hookimpl
    def on_task_instance_failed(self, task_instance: Any) -> None:
        record(task_instance)

    @hookimpl
    def on_task_instance_skipped(self, task_instance: Any) -> None:
        record(task_instance, skipped=True)


def record(ti: Any, *, skipped: bool = False) -> None:
    """Record a task instance in MLflow, or write one warning into its log."""
    try:
        settings = Settings.read()
    except FinalError:
        return  # every task of this package has failed for it
    if not settings.mlflow:
        return
    try:
        # Imported when needed: all components of Airflow import this module.
        from aerotrain_airflow.mlflow_records import record_of

        found = record_of(ti, settings, skipped=skipped)
        if found is not None:
            _write(settings.mlflow, found)
    except Exception as error:  # noqa: BLE001 -- nothing that is recorded may fail a task
        line = str(error).strip().rpartition("\n")[2] or type(error).__name__
        line = re.sub(r"//[^/@\s]*@", "//", line)[:500]  # without a password in the URI
        _LOG.warning("MLflow does not have all of this task: %s", line)


def _write(uri: str, record: Record) -> None:
    """Write a record to the server. Raises an error whose last line says why it failed."""
    try:
        done = subprocess.run(
            [sys.executable, "-m", "aerotrain_airflow.mlflow_writer"],
            input=f"{uri}\n{record.to_json()}",
            capture_output=True,
            text=True,
            timeout=_SECONDS,
            check=False,
        )
    except subprocess.TimeoutExpired:
        raise TimeoutError(f"it was not written within {_SECONDS:g} s") from None
    if done.returncode:
        raise RuntimeError(done.stderr)
