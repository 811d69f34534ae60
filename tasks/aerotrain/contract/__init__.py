"""The contract between Airflow and a replica: the job, its addresses, its states, its log lines.

Both processes import these modules, so they import nothing but the standard library.
"""
