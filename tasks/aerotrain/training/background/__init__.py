"""Background threads of a training."""
