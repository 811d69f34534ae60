"""The Airflow side: steps for DAG files, operators, the backend of pods, a page of each run."""
