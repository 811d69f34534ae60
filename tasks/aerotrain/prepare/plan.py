"""The first step of ``prepare``: which parts there are, and whether anything is to do."""

from typing import Any

from aerotrain.contract.errors import FinalError, SpecError
from aerotrain.contract.names import path_segment
from aerotrain.contract.steps import PlanArguments
from aerotrain.dataset import VERSION
from aerotrain.prepare.assignment import shards_per_part
from aerotrain.prepare.layout import PLAN, Plan, fingerprint_of, folder_of
from aerotrain.prepare.sources import open_source
from aerotrain.replica import Replica
from aerotrain.store import MANIFEST, open_store


def run(replica: Replica) -> dict[str, Any]:
    """Plan the data set, unless the same input was sealed before.

    Returns:
        ``{"dataset": url, "parts": [arguments of aerotrain.prepare.part, …]}``, with no part
        where there is nothing to write.

    Raises:
        FinalError: the source has no part.
    """
    arguments = PlanArguments.of(replica.job.arguments)
    planned = make_plan(arguments)
    store = open_store(replica.job.store).child(folder_of(planned.fingerprint))
    if store.exists(MANIFEST):
        print(f"already sealed: {store.url} holds this very input, there is nothing to write")
        return {"dataset": store.url, "parts": []}
    store.put(PLAN, planned.to_json().encode())
    print(f"planned {store.url}: {len(planned.parts)} parts")
    numbers = range(len(planned.parts))
    return {
        "dataset": store.url,
        "parts": [{"dataset": store.url, "part": number} for number in numbers],
    }


def make_plan(arguments: PlanArguments) -> Plan:
    """What those arguments ask for; reads the list of parts, and writes nothing.

    The fingerprint is made of all that decides what is written.
    """
    for name in arguments.splits:
        if path_segment(name) != name:
            raise SpecError(
                f"the split {name!r} cannot be part of a file's name; call it "
                f"{path_segment(name)!r}, or another word of letters and digits"
            )
    parts = open_source(arguments.source).parts()
    if not parts:
        raise FinalError(
            f"the source {dict(arguments.source)} is empty: it lists no part; see whether its "
            "input is where it looks for it"
        )
    per_part = shards_per_part(arguments.shards, len(parts))
    fingerprint = fingerprint_of(
        {
            "version": VERSION,
            "source": dict(arguments.source),
            "parts": [part.fingerprint for part in parts],
            "splits": dict(arguments.splits),
            "shards": arguments.shards,
        }
    )
    return Plan(
        source=dict(arguments.source),
        parts=tuple(part.description for part in parts),
        fingerprint=fingerprint,
        splits=dict(arguments.splits),
        shards_per_part=per_part,
    )
