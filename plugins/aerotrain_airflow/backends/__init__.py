"""The backends, which run the replicas of a job: one folder each, and one driver for all.

``base`` is the protocol that a backend implements, ``driver`` starts and follows a replica group as
the controller decides, and ``launcher`` is the interface of both for a task.
"""
