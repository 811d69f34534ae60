"""What runs the replicas of a job: a folder for each place, and one driver for all.

``base`` is the protocol that a backend implements, ``driver`` starts and follows a group of
replicas as the controller decides, and ``launcher`` is what a task holds of both.
"""
