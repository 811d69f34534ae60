"""Creates the Kubernetes backend from the settings."""

from pathlib import Path

from aerotrain_airflow.backends.kubernetes.backend import KubernetesBackend
from aerotrain_airflow.backends.kubernetes.plan import PodSettings
from aerotrain_airflow.backends.kubernetes.template import read_template
from aerotrain_airflow.settings import Settings


def chosen(settings: Settings, holder: str) -> KubernetesBackend:
    """The backend that a task try uses.

    Raises:
        FinalError: the pod template cannot be read.
    """
    return KubernetesBackend(pod_settings(settings), settings.kubernetes_conn_id, holder)


def pod_settings(settings: Settings) -> PodSettings:
    """The settings that plans of pods need.

    Raises:
        FinalError: the pod template cannot be read.
    """
    template = settings.pod_template_file
    return PodSettings(
        namespace=settings.namespace,
        image=settings.image,
        store_secret=settings.store_secret,
        service_account=settings.service_account,
        queue=settings.queue,
        pod_template=read_template(Path(template)) if template else {},
    )
