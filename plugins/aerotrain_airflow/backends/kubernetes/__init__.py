"""The backend ``kubernetes``: replicas as pods.

``plan``, ``pod`` and ``template`` make the manifests of a job; ``reasons`` and ``states`` interpret
a pod's status; ``access`` lists the required permissions. These import nothing of Airflow and have
no side effects. The others use the cluster: ``cluster`` is the client, ``lifecycle`` creates,
adopts and ends a group, ``group`` follows one (``watching``, ``observed``, ``logs``) and restarts
its pods (``renewal``), and ``trigger`` does so while its task is deferred.
"""
