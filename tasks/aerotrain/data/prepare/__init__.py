"""Data preparation: from raw input to a finished data set, in three idempotent steps.

A source lists its *fragments*; ``plan`` groups them into *partitions*. ``partition`` reads the
fragments of one partition and writes its shards, and ``finalize`` writes the manifest when every
partition is written. Nothing here needs TensorFlow.
"""
