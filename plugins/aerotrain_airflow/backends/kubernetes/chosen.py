"""The backend of pods, as the settings have it."""

from pathlib import Path

from aerotrain_airflow.backends.kubernetes.backend import KubernetesBackend
from aerotrain_airflow.backends.kubernetes.plan import PodSettings
from aerotrain_airflow.backends.kubernetes.template import read_template
from aerotrain_airflow.settings import Settings


def chosen(settings: Settings, holder: str) -> KubernetesBackend:
    """The backend that a task try uses.

    Raises:
        FinalError: the template of its pods cannot be read.
    """
    return KubernetesBackend(pod_settings(settings), settings.kubernetes_conn_id, holder)


def pod_settings(settings: Settings) -> PodSettings:
    """What plans of pods need to know.

    Raises:
        FinalError: the template cannot be read.
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
