"""The controller: decides what happens to a replica group, from what was observed.

It is pure code, without a client, a clock or a file. Observations and times are arguments; the
result is a ``Decision``, a value (``decision``). ``controller`` decides for the whole group,
``restart_policy`` judges one failure, ``deadlines`` has all time limits, and ``history`` reads the
event log.
"""
