"""The backend ``process``: replicas as local processes on loopback, one supervisor per job.

All state of a group is in one folder, its handle: ``<root>/<job>/<attempt>/`` (``folder``).
``supervisor_client`` is the client of its supervisor (``aerotrain.supervisor``), which forks
replicas from a process that has imported TensorFlow where that is possible.
"""
