"""A complete Airflow on one machine: its components as local processes, on loopback only.

``stack`` starts PostgreSQL, the S3 server and Airflow's components. All carry a mark of their
home in their environment, by which they are found and ended: Airflow first, then the replicas,
which save checkpoints, and the servers last. One that ends is started again (``servers``).
PostgreSQL rejects root, so that of root runs as ``nobody``. Airflow's components, and so the tasks
that it forks from them, are forks of one process that has imported Airflow (``components``,
``preloaded``). Of the S3 server's ports only S3's is usable from outside: the others require a
client certificate and a token that are created at each start (``weed``). ``__main__`` has ``run``,
``up`` and ``down``; ``dag_run`` follows a run over the REST API (``airflow_api``), and ``report``
prints its results. Tests and benchmarks use the same.
"""
