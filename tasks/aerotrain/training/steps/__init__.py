"""One training step, for each kind of strategy."""
