"""Which backend a task uses: the run's choice, or else the administrator's."""

from typing import Any

from aerotrain_airflow.backends.launcher import Launcher
from aerotrain_airflow.backends.process.backend import ProcessBackend
from aerotrain_airflow.credentials import replica_base_environment
from aerotrain_airflow.settings import Settings


def choose_launcher(settings: Settings, holder: str) -> Any:
    """The launcher that the settings name; ``holder`` is the task try that will use it.

    Raises:
        FinalError: what that launcher needs is not set.
    """
    if settings.launcher == "process":
        return Launcher(
            ProcessBackend(
                settings.scratch,
                replica_base_environment(settings),
                holder,
                settings.python,
                warm=settings.warm_start,
            )
        )
    # Loaded where it is used: the client costs a second that no laptop has to wait for.
    from aerotrain_airflow.launchers.kubernetes import KubernetesLauncher

    return KubernetesLauncher(settings.pods(), settings.kubernetes_conn_id, holder)
