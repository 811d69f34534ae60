"""Replicas as pods: what is made, what Kubernetes says of it, and how it is followed to its end.

``plan``, ``pod`` and ``template`` make manifests of a job; ``reasons`` and ``states`` read what
a pod's status says; ``access`` is what all this has to be allowed. These know nothing of
Airflow and touch nothing. The others speak with the cluster: ``cluster`` is the client,
``lifecycle`` creates, adopts and ends a group, ``group`` follows one (``watching``, ``observed``,
``logs``) and restarts its pods (``renewal``), and ``trigger`` does so while its task is deferred.
"""
