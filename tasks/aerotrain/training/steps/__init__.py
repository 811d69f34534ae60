"""One step of a training, as each kind of strategy takes it."""
