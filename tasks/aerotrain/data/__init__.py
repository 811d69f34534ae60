"""Raw data to TFRecord shards: ``sources`` read, ``records`` encode, ``prepare`` writes a data set.

``statistics`` describes what was written, ``dataset`` is its manifest. Nothing here imports
TensorFlow.
"""
