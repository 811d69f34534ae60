"""The supervisor of a job's local processes: it starts them, sees them end, and ends them.

It runs in the training interpreter, detached from the task that started it, and decides nothing.
A task asks it by a socket (``protocol``). ``fork_server`` is a process that has imported
TensorFlow, Keras and the training loop already, and from which supervisors are forked, so that
their replicas need no import (``warm``).
"""
