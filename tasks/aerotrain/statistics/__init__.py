"""What the records of a data set are like, counted in the pass that writes them.

Each part keeps sketches of its columns; ``seal`` merges them, compares them with the last data
set's, and writes ``statistics.json`` for programs and ``statistics.html`` for people.
"""
