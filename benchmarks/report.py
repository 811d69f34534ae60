"""The output of every benchmark: tables, then one JSON line of figures for programs."""

import json
from collections.abc import Mapping, Sequence
from typing import Any


def print_report(rows: Sequence[Mapping[str, Any]], figures: Mapping[str, float]) -> None:
    """Print ``rows``, which share their columns, as a Markdown table, and ``figures`` as JSON."""
    print_table(rows)
    print(json.dumps({name: round(value, 4) for name, value in figures.items()}))


def print_table(rows: Sequence[Mapping[str, Any]]) -> None:
    """Print ``rows``, which share their columns, as a Markdown table."""
    columns = list(rows[0])
    print(f"| {' | '.join(columns)} |")
    print(f"|{'---|' * len(columns)}")
    for row in rows:
        print(f"| {' | '.join(_shown(row[column]) for column in columns)} |")


def _shown(value: Any) -> str:
    return f"{value:.2f}" if isinstance(value, float) else str(value)
