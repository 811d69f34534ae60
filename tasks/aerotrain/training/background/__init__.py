"""Background threads of a training: uploads, the watchdog, and what a replica tells of itself."""
