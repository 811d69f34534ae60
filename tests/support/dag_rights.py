"""An auth manager of Airflow with rights by DAG, which the simple one does not have."""

from typing import Any

from airflow.api_fastapi.auth.managers.models.resource_details import DagAccessEntity
from airflow.api_fastapi.auth.managers.simple.simple_auth_manager import SimpleAuthManager


class AuthManagerOfOneDag(SimpleAuthManager):
    """Lets every user read the DAG ``own`` and its task instances, and nothing of other DAGs.

    Users other than viewers may also trigger its runs.
    """

    def is_authorized_dag(
        self, *, method: str, user: Any, access_entity: Any = None, details: Any = None
    ) -> bool:
        reads = method == "GET" and access_entity in (None, DagAccessEntity.TASK_INSTANCE)
        triggers = (method, access_entity) == ("POST", DagAccessEntity.RUN)
        return details.id == "own" and (reads or (triggers and user.role != "VIEWER"))
