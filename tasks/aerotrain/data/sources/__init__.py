"""Sources of raw records: one protocol, and a table of its implementations by kind.

A source lists its fragments, with sizes and fingerprints, and reads one fragment as batches of
columns. Splits, shards and serialized records are the concern of ``aerotrain.data.prepare``.
"""

from aerotrain.data.sources.kinds import SOURCES, open_source
from aerotrain.data.sources.protocol import Batch, Fragment, Rejected, Source, SourceError

__all__ = ["SOURCES", "Batch", "Fragment", "Rejected", "Source", "SourceError", "open_source"]
