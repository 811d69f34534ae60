"""What becomes of a group of replicas: decided from what was seen, and never done here.

Pure: no client, no clock, no file. Observations and times come in as arguments; out comes a
``Decision``, a value. ``restart_policy`` judges one loss, ``deadlines`` has every limit of time,
``history`` reads the event log, and ``controller`` decides for the whole group.
"""
