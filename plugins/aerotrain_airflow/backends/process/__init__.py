"""Replicas as processes of this machine, talking over loopback, below one supervisor a job.

All that is known of a group lies in one folder, its handle: ``<root>/<job>/<attempt>/``
(``folder``). ``supervising`` is the client of its supervisor (``aerotrain.supervisor``), and
``warm_start`` says when that one is forked from a process that has imported TensorFlow.
"""
