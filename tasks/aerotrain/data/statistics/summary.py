"""The file names of a data set's statistics, and how to load them without other libraries."""

import json
from typing import Any

from aerotrain.store import MissingError, open_store

STATISTICS = "statistics.json"
PAGE = "statistics.html"
SCHEMA = "schema.json"


def load_statistics(url: str) -> dict[str, dict[str, Any]]:
    """The summary of each column of the data set at ``url``; empty if it has none.

    Each has ``missing`` and ``distinct``; numbers have ``min``, ``max``, ``mean``, ``std`` and
    ``quantiles`` too. ``vocabulary`` holds the values of a categorical column with their counts,
    most frequent first.
    """
    try:
        data: dict[str, dict[str, Any]] = json.loads(open_store(url).get(STATISTICS))
    except MissingError:
        return {}
    return data
