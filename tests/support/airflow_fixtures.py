"""Fixtures of tests that run tasks in this process, on an Airflow database of their own.

Airflow reads its environment as it is first imported, so this module, which ``conftest.py``
loads as a plugin before any test, sets it at its own import.
"""

import os
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

_home = tempfile.TemporaryDirectory(prefix="aerotrain-tests-")
os.environ |= {
    "AIRFLOW_HOME": _home.name,
    "AIRFLOW__CORE__LOAD_EXAMPLES": "False",
    "AIRFLOW__CORE__DAGS_FOLDER": str(Path(__file__).parents[1] / "dags"),
    "AIRFLOW__DATABASE__SQL_ALCHEMY_CONN": f"sqlite:///{_home.name}/airflow.db",
}


@pytest.fixture(scope="session")
def airflow_database() -> Iterator[None]:
    """An empty, migrated metadata database."""
    from airflow.utils.db import initdb

    initdb()
    yield
    _home.cleanup()
