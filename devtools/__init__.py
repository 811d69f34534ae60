"""A complete Airflow on one machine: its components as local processes, on loopback only."""
