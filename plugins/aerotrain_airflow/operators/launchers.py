"""The launchers that the setting ``launcher`` may name, and the trigger that follows their jobs."""

from typing import TYPE_CHECKING, Any

from aerotrain.launch.launcher import Launcher
from aerotrain.launch.process.backend import ProcessBackend
from aerotrain_airflow.operators.credentials import replica_base_environment
from aerotrain_airflow.settings import Settings

if TYPE_CHECKING:
    from airflow.triggers.base import BaseTrigger


def choose_launcher(settings: Settings, holder: str) -> Launcher[Any]:
    """The launcher that the settings name; ``holder`` is the task try that will use it.

    Raises:
        FinalError: a setting that this launcher needs is missing.
    """
    if settings.launcher == "kubernetes":
        # Imported on use: the client takes a second to import.
        from aerotrain_airflow.kubernetes.backend import from_settings

        return Launcher(from_settings(settings, holder))
    return Launcher(
        ProcessBackend(
            settings.scratch,
            replica_base_environment(settings),
            holder,
            settings.python,
            warm=settings.warm_start,
        )
    )


def trigger_of(
    settings: Settings, handle: str, holder: str, until: float | None
) -> "BaseTrigger | None":
    """The trigger that follows the group ``handle`` while its task is deferred.

    None for local processes: a triggerer may run on another machine, and cannot see them.
    """
    if settings.launcher != "kubernetes":
        return None
    from aerotrain_airflow.kubernetes.trigger import JobTrigger

    conn_id = settings.kubernetes_conn_id
    return JobTrigger(handle=handle, conn_id=conn_id, holder=holder, until=until)
