"""An auth manager of Airflow with rights by DAG, which the simple one does not have."""

from typing import Any

from airflow.api_fastapi.auth.managers.models.resource_details import DagAccessEntity
from airflow.api_fastapi.auth.managers.simple.simple_auth_manager import SimpleAuthManager


class AuthManagerOfOneDag(SimpleAuthManager):
    """Lets every user read the task instances of the DAG ``own``, and nothing of other DAGs."""

    def is_authorized_dag(
        self, *, access_entity: Any = None, details: Any = None, **_: Any
    ) -> bool:
        return access_entity is DagAccessEntity.TASK_INSTANCE and details.id == "own"
