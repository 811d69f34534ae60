"""The backend ``kubernetes``: replicas as pods.

``plan``, ``pod`` and ``template`` make the manifests of a job; ``states`` and ``observed``
interpret the statuses of its pods; ``identity`` has their names and owners. These import nothing of
Airflow and have no side effects. The others use the cluster: ``cluster`` is the client, ``access``
checks permissions, ``kueue`` is a queue, ``lifecycle`` creates, adopts, restarts and ends a group,
``group`` follows one and its ``logs``, and ``trigger`` does so while its task is deferred.
"""
