"""Measurements, each run as ``python -m benchmarks.NAME``.

Every figure is a ratio between two things that one run measured in turn, because the machines
are noisy. Each takes ``--quick`` (under a minute), prints a table for people, and as its last
line one JSON object of named figures. ``make bench`` writes the output to
``benchmarks/results/``.
"""
