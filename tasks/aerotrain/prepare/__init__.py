"""From raw input to a sealed data set, in three steps that each may be run again.

A source lists its *pieces*; ``plan`` groups them into the *parts* of the data set. ``partition``
writes the shards of one part, out of the pieces that are its own, and ``seal`` writes the
manifest when every part is there. Nothing here needs TensorFlow.
"""
