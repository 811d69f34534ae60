"""Loads the fixtures of all tests, and orders the test files."""

import os
import sys

import pytest

# Bytecode is kept for the other workers and for hundreds of child processes, even if the shell says
# otherwise.
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
sys.dont_write_bytecode = False

pytest_plugins = [
    "support.airflow_fixtures",
    "support.training_fixtures",
    "support.store_fixtures",
    "support.kubernetes_worlds",
    "support.imagined_groups",
    "support.live_sets",
]

#: The slowest files, slowest first: each worker of ``make test`` takes the next file, so that all
#: workers end at about the same time.
LONGEST = [
    "test_pipeline.py",
    "test_training_recovery.py",
    "test_strategies.py",
    "test_local.py",
    "test_resume.py",
    "test_compiled_models.py",
    "test_training.py",
    "test_embeddings.py",
    "test_dtensor.py",
    "test_callbacks.py",
    "test_legacy_keras.py",
    "test_cli.py",
    "test_lease.py",
    "test_store_failures.py",
    "test_kubernetes_launcher.py",
    "test_kubernetes_faults.py",
    "test_kubernetes_recovery.py",
    "test_metrics.py",
    "test_extras.py",
    "test_s3_server.py",
    "test_any_model.py",
    "test_evaluate_export.py",
    "test_example_pipelines.py",
]


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Put the tests of the longest files first."""
    rank = {name: number for number, name in enumerate(LONGEST)}
    items.sort(key=lambda item: rank.get(item.path.name, len(rank)))
