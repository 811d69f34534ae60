"""Where raw records come from: one protocol, and a table of the kinds there are.

A source lists its pieces, with sizes and fingerprints, and reads one piece as batches of
columns. It knows nothing of splits, shards or records as bytes; ``aerotrain.prepare`` does.
"""

from aerotrain.sources.kinds import SOURCES, open_source
from aerotrain.sources.protocol import Batch, Fragment, Rejected, Source, SourceError

__all__ = ["SOURCES", "Batch", "Fragment", "Rejected", "Source", "SourceError", "open_source"]
