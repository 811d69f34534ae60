"""Loads the fixtures of all tests, and orders the test files."""

import gc
import os
import sys

import pytest

# Bytecode is kept for the other workers and for hundreds of child processes, even if the shell says
# otherwise.
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
sys.dont_write_bytecode = False

# What is imported while the tests are collected stays. Searching all of it for garbage again and
# again takes a tenth of the CPU of tests that train.
gc.disable()

pytest_plugins = [
    "support.airflow_fixtures",
    "support.training_fixtures",
    "support.store_fixtures",
    "support.kubernetes_worlds",
    "support.imagined_groups",
    "support.live_sets",
]

#: The slowest files. Each worker of ``make test`` takes the next one, so those that compute come
#: early, and those that mostly wait are spread among them: a waiting worker leaves its core to the
#: others, of which there is one more than cores.
LONGEST = [
    "test_pipeline.py",
    "test_tutorial.py",
    "test_strategies.py",
    "test_callbacks.py",
    "test_gate.py",
    "test_lease.py",  # waits
    "test_keras_table.py",
    "test_check.py",
    "test_dtensor.py",
    "test_store_failures.py",  # waits
    "test_export_formats.py",
    "test_cli.py",
    "test_operator.py",
    "test_kubernetes_recovery.py",  # waits
    "test_scaffold.py",
    "test_training_recovery.py",
    "test_kubernetes_faults.py",  # waits
    "test_evaluate_export.py",
    "test_compiled_models.py",
    "test_example_pipelines.py",
    "test_legacy_keras.py",
    "test_local.py",
    "test_resume.py",
    "test_start_from.py",
    "test_s3_server.py",  # waits
    "test_prepare.py",
    "test_training.py",
    "test_serve_check.py",
    "test_process_recovery.py",  # waits
    "test_operator_on_pods.py",
    "test_shared_batches.py",
    "test_changed_code.py",
    "test_any_model.py",
    "test_extras.py",
    "test_kubernetes_launcher.py",
    "test_metrics_by_batches.py",
]


def pytest_collection_finish() -> None:
    """Collect garbage from here on, without what the imports have left."""
    gc.collect()
    gc.freeze()
    gc.enable()


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Put the tests of the longest files first, in their order."""
    rank = {name: number for number, name in enumerate(LONGEST)}
    items.sort(key=lambda item: rank.get(item.path.name, len(rank)))
