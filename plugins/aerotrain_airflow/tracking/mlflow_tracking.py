"""Records trainings, evaluations and versions in MLflow, if the setting ``mlflow`` has its URI.

A listener does it when a task has ended and Airflow has its state, so no task waits for MLflow.
What is recorded is a value (``mlflow_records.py``), which another process writes
(``mlflow_writer.py``). The task's process waits for it for a limited time. If it has failed by
then, or has not ended, the task's log has one warning.
"""

import re
import subprocess
import sys
import tempfile
from typing import Any

import structlog
from airflow.listeners import hookimpl

from aerotrain.contract.errors import FinalError
from aerotrain_airflow.settings import Settings
from aerotrain_airflow.tracking.mlflow_writer import LONGEST, Record

#: Seconds for which a task's process waits: two for MLflow's import, four for a server that does
#: not answer. Other listeners need time too: Airflow ends the process 20 s after a success.
_SECONDS = 8.0

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
        from aerotrain_airflow.tracking.mlflow_records import record_of

        found = record_of(ti, settings, skipped=skipped)
        if found is not None:
            _write(settings.mlflow, found)
    except Exception as error:  # noqa: BLE001 -- nothing that is recorded may fail a task
        line = str(error).strip().rpartition("\n")[2] or type(error).__name__
        line = re.sub(r"//[^/@\s]*@", "//", line)[:500]  # without a password in the URI
        _LOG.warning("MLflow does not have all of this task: %s", line)


def _write(uri: str, record: Record) -> None:
    """Let a process write a record; raises an error whose last line says why it failed.

    It has a session of its own, so that it can go on when the task's process has ended.
    """
    with tempfile.TemporaryFile("w+") as document:
        document.write(f"{uri}\n{record.to_json()}")
        document.seek(0)
        process = subprocess.Popen(
            [sys.executable, "-m", "aerotrain_airflow.tracking.mlflow_writer"],
            stdin=document,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )
    try:
        _, said = process.communicate(timeout=_SECONDS)
    except subprocess.TimeoutExpired:
        raise TimeoutError(
            f"it was not written within {_SECONDS:g} s; the process {process.pid} tries on for "
            f"{LONGEST} s in all"
        ) from None
    if process.returncode:
        raise RuntimeError(said or f"its process ended with {process.returncode}")
