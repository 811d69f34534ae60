"""What aerotrain adds to Airflow as a plugin: a listener that records trainings in MLflow."""

from airflow.plugins_manager import AirflowPlugin

from aerotrain_airflow.mlflow_tracking import MlflowListener


class AerotrainPlugin(AirflowPlugin):
    """Airflow finds it by the entry point ``airflow.plugins`` of this package."""

    name = "aerotrain"
    listeners = [MlflowListener()]  # noqa: RUF012 -- Airflow declares it so
