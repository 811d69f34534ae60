"""Statistics of the columns of a data set, gathered in the same pass that writes its records.

Each partition keeps sketches of its columns; ``finalize`` merges them, compares them with those of
the last data set, and the ``splits`` with each other, and writes ``statistics.json`` for programs
and ``statistics.html`` for people.
"""
