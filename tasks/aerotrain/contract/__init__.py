"""What Airflow and a replica agree on: the job, its addresses, its states, its lines.

Both processes import these modules, so they need nothing but the standard library.
"""
