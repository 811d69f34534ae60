"""The run page: what a training does and did, inside Airflow's UI."""
