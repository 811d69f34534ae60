"""The Airflow side: the operators, the launchers, and a complete Airflow for one machine."""
