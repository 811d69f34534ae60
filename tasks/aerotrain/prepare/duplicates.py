"""Two records with one key, found by their hashes and then named."""

import numpy as np

from aerotrain.contract.errors import FinalError
from aerotrain.prepare.assignment import Hashes
from aerotrain.prepare.conform import conformed
from aerotrain.prepare.intake import key_hashes, schema_of_columns
from aerotrain.prepare.layout import Plan, PlannedPart
from aerotrain.sources import open_source


def check_unique(plan: Plan, planned: PlannedPart, hashes: Hashes) -> None:
    """Make sure that no two records of a part have one key.

    Raises:
        FinalError: two have; it says where they lie.
    """
    ordered = np.sort(hashes)
    twice = ordered[1:][ordered[1:] == ordered[:-1]]
    if not len(twice):
        return
    places = " and ".join(_places(plan, planned, twice[0]))
    raise FinalError(
        f"{len(twice)} records have a key that came before, the first at {places}; give every "
        "record a key of its own"
    )


def _places(plan: Plan, planned: PlannedPart, wanted: np.uint64) -> list[str]:
    """Where the records of that hash lie: their pieces are read once more to tell."""
    source, schema = open_source(plan.source), plan.schema
    places = []
    for piece in planned.pieces:
        for batch in source.read(piece, schema):
            schema = schema or schema_of_columns(batch, plan.rules)
            fit = conformed(batch, schema, plan.rules)
            hashes = key_hashes(batch, fit, plan.rules)
            assert hashes is not None
            for row in fit.rows[hashes == wanted]:
                named = f" {batch.keys[row]!r}" if batch.keys else ""
                places.append(f"{batch.file}, {batch.unit} {batch.offsets[row]}{named}")
    return places
