"""What Airflow loads of this package as a plugin: pages of its UI, and the listener for MLflow.

https://airflow.apache.org/docs/apache-airflow/stable/administration-and-deployment/plugins.html
"""

from typing import Any

from airflow.listeners import hookimpl
from airflow.plugins_manager import AirflowPlugin
from airflow.providers.common.compat.sdk import conf

from aerotrain_airflow.operators.links import PAGE_ROUTE, PREFIX
from aerotrain_airflow.settings import SECTION

_VIEW = {
    "name": "Training",
    "href": f"{PREFIX}/runs/{{DAG_ID}}/{{RUN_ID}}",
    "icon": f"{PREFIX}/static/icon.svg",
    "icon_dark_mode": f"{PREFIX}/static/icon-dark.svg",
}


class MlflowListener:
    """Airflow calls it in the task's own process, when the task has ended."""

    @hookimpl
    def on_task_instance_success(self, task_instance: Any) -> None:
        self._record(task_instance)

    @hookimpl
    def on_task_instance_failed(self, task_instance: Any) -> None:
        self._record(task_instance)

    @hookimpl
    def on_task_instance_skipped(self, task_instance: Any) -> None:
        self._record(task_instance)

    def _record(self, ti: Any) -> None:
        if conf.get(SECTION, "mlflow", fallback=""):
            # Imported when needed: all components of Airflow import this module.
            from aerotrain_airflow.tracking.mlflow_runs import record

            record(ti)


class AerotrainPlugin(AirflowPlugin):
    """The views of runs, tasks and models, the application that serves them, the listener."""

    name = "aerotrain"
    external_views = [  # noqa: RUF012 -- Airflow reads it so
        {**_VIEW, "destination": "dag_run", "url_route": PAGE_ROUTE},
        {
            **_VIEW,
            "href": f"{_VIEW['href']}?task={{TASK_ID}}",
            "destination": "task_instance",
            "url_route": "task-training",
        },
        {
            "name": "Models",
            "href": f"{PREFIX}/models",
            "icon": f"{PREFIX}/static/models.svg",
            "icon_dark_mode": f"{PREFIX}/static/models-dark.svg",
            "destination": "nav",
            "nav_top_level": True,
            "url_route": "models",
        },
    ]

    listeners = [MlflowListener()]  # noqa: RUF012 -- as above

    @property
    def fastapi_apps(self) -> list[dict[str, Any]]:  # type: ignore[override]  # it reads an instance
        """The application. Only the API server reads this, so only it imports FastAPI."""
        from aerotrain_airflow.run_page.app import app

        return [{"app": app, "url_prefix": PREFIX, "name": "aerotrain"}]
