"""What runs in Airflow: the operators, the launchers, and a whole Airflow on one machine."""
