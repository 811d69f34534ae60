"""Threads beside a training, and what they do for it."""
