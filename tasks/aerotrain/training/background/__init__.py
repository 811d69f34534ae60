"""Background threads of a training: uploads, the watchdog, the event log, curves and status."""
