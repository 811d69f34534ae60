"""What runs the replicas of a job: one protocol, and one implementation a place.

``base`` is the protocol; ``process`` runs replicas as local processes, ``kubernetes`` as pods.
"""
