"""What other systems are told of a run: MLflow, and OpenLineage by Airflow."""
