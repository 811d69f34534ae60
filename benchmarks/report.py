"""How every benchmark ends: a table for people, then one JSON line of figures for programs."""

import json
from collections.abc import Mapping, Sequence
from typing import Any


def print_report(rows: Sequence[Mapping[str, Any]], figures: Mapping[str, float]) -> None:
    """Print ``rows``, which share their columns, as a Markdown table, and ``figures`` as JSON."""
    columns = list(rows[0])
    print(f"| {' | '.join(columns)} |")
    print(f"|{'---|' * len(columns)}")
    for row in rows:
        print(f"| {' | '.join(_shown(row[column]) for column in columns)} |")
    print(json.dumps({name: round(value, 4) for name, value in figures.items()}))


def _shown(value: Any) -> str:
    return f"{value:.2f}" if isinstance(value, float) else str(value)
