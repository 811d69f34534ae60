"""Measurements, each run as ``python -m benchmarks.NAME``.

Every figure is a ratio between two things that one run measured in turn, because the speed of the
machines varies. Each benchmark accepts ``--quick`` (some minutes at most), prints a table, and as
its last line one JSON object of named figures. ``make bench`` writes the output to
``benchmarks/results/``; ``benchmarks/README.md`` explains the tables.
"""
