"""The operators of a pipeline: they describe the job of a task, and start, follow and end it."""
