"""The supervisor of a job's local processes: it starts them, observes their ends, and ends them.

It runs in the training interpreter, detached from the task that started it, and makes no decisions.
A task sends it requests over a socket (``protocol``). ``fork_server`` is a process that has already
imported TensorFlow, Keras and the training loop. Supervisors are forked from it, so that their
replicas need no imports.
"""
