"""The state of a training, read, kept in the store, and found again."""
