"""Starts, follows, restarts and ends the replicas of a job; Airflow and the command line use it.

``controller`` decides what happens to a replica group, from what was observed. It is pure code,
without a client, a clock or a file: observations and times are arguments, and the result is a
``decision.Decision``, a value. Of it, ``restart_policy`` judges one failure, has all time limits,
and reads the event log; ``resizing`` decides on the size, and ``stragglers`` finds slow replicas.
``driver`` observes a group by its ``backend``, calls the controller, and lets the
backend carry out the decision; ``launcher`` is its synchronous interface. ``process`` is the
backend of local processes.
"""
