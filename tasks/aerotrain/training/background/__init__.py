"""Background threads of a training: the watchdog, and what a replica writes to the store."""
