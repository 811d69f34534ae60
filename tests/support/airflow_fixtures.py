"""Fixtures for tests that run tasks in this process, with an Airflow database of their own.

Airflow reads its environment at its first import. Therefore this module sets the environment at its
own import, and ``conftest.py`` loads it as a plugin before any test.
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
