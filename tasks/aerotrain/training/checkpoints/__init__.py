"""The state of a training, copied, kept in the store, and found again."""
