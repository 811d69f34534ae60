"""Creates the backend of local processes from the settings."""

from aerotrain_airflow.backends.process.backend import ProcessBackend
from aerotrain_airflow.credentials import replica_base_environment
from aerotrain_airflow.settings import Settings


def chosen(settings: Settings, holder: str) -> ProcessBackend:
    """The backend that a task try uses."""
    return ProcessBackend(
        settings.scratch,
        replica_base_environment(settings),
        holder,
        settings.python,
        warm=settings.warm_start,
    )
