"""The backend of pods, as the settings have it."""

from aerotrain_airflow.backends.kubernetes.backend import KubernetesBackend
from aerotrain_airflow.settings import Settings


def chosen(settings: Settings, holder: str) -> KubernetesBackend:
    """The backend that a task try uses.

    Raises:
        FinalError: the template of its pods cannot be read.
    """
    return KubernetesBackend(settings.pods(), settings.kubernetes_conn_id, holder)
