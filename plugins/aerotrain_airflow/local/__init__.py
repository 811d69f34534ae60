"""A whole Airflow on one machine: its parts as processes of this machine, loopback only."""
