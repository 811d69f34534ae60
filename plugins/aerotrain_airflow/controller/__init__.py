"""The controller: decides what happens to a replica group, from what was observed.

It is pure code, without a client, a clock or a file. Observations and times are arguments; the
result is a ``Decision``, a value. ``restart_policy`` judges one failure, ``deadlines`` has all time
limits, ``history`` reads the event log, ``situation`` has what was observed at one moment, and
``controller`` decides for the whole group.
"""
