"""Evaluates the events of a run: its goodput, and the number of workers of the next attempt."""
