"""Records of a run in other systems: MLflow, and OpenLineage by Airflow."""
