"""What differs between the supported versions of Airflow, 3.2 and later.

Names that only moved are imported from the provider ``common.compat``.
"""

from importlib import import_module
from typing import Any

try:
    from airflow.triggers.shared_stream import SharedStreamProducer
except ModuleNotFoundError:  # before 3.3; then each trigger has its own stream

    class SharedStreamProducer:  # type: ignore[no-redef]
        """The interface of a producer of events."""


__all__ = ["SharedStreamProducer", "stats_of"]


def stats_of(package: str) -> Any:
    """The client of StatsD or OpenTelemetry that a process of Airflow has initialized.

    ``package`` is ``airflow.sdk`` in a task, and ``airflow`` in a triggerer. The client is a module
    since 3.3, and was a class before.
    """
    module = import_module(f"{package}.observability.stats")
    return module if hasattr(module, "incr") else module.Stats
