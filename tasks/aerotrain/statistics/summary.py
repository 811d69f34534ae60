"""What a data set's statistics are called, and how a model reads them: with no other library."""

import json
from typing import Any

from aerotrain.store import MissingError, open_store

STATISTICS = "statistics.json"
PAGE = "statistics.html"
SCHEMA = "schema.json"


def load_statistics(url: str) -> dict[str, dict[str, Any]]:
    """The summary of each column of the data set at ``url``; empty where it has none.

    Each has ``missing`` and ``distinct``, of numbers ``min``, ``max``, ``mean``, ``std`` and
    ``quantiles`` too, and ``vocabulary``, the values of a column of words or classes with their
    counts, those that come most often first.
    """
    try:
        data: dict[str, dict[str, Any]] = json.loads(open_store(url).get(STATISTICS))
    except MissingError:
        return {}
    return data
