"""The last step of ``predict``: check that all partitions are there, and publish the manifest."""

import json

from aerotrain.contract.errors import FinalError
from aerotrain.contract.layout import DATA, QUARANTINE
from aerotrain.contract.preparing import PredictFinalizeArguments
from aerotrain.data.prepare.layout import partition_key
from aerotrain.data.prepare.quarantine import SHOWN, check_rejected
from aerotrain.prediction.layout import VERSION, PredictedPartition, PredictionPlan, file_key
from aerotrain.replica import Replica
from aerotrain.store import MANIFEST, MissingError, Store, open_store
from aerotrain.store.manifest import each_of


def run(replica: Replica) -> str:
    """Finalize the predictions, unless they are finalized already.

    Returns:
        The URL of the folder of their Parquet files, which have one row for each record.

    Raises:
        FinalError: a partition is missing, or too many records were rejected.
    """
    store = open_store(PredictFinalizeArguments.from_dict(replica.job.arguments).predictions)
    plan = PredictionPlan.read(store)
    if store.exists(MANIFEST):
        print(f"already finalized: {store.url}")
        return f"{store.url}/{DATA}"
    found = list(each_of(lambda number: _predicted(store, number), range(plan.partitions)))
    partitions = [each for each in found if each is not None]
    if missing := [number for number, each in enumerate(found) if each is None]:
        raise FinalError(
            f"{len(missing)} of {plan.partitions} partitions of {store.url} are not predicted: "
            f"{', '.join(map(str, missing[:SHOWN]))}; run predict again; those that are written "
            "are kept"
        )
    rejected = sum(each.rejected for each in partitions)
    first = [each for part in partitions for each in part.first_rejected][:SHOWN]
    check_rejected(rejected, first, plan.arguments.max_rejected, f"{store.url}/{QUARANTINE}")
    records = sum(each.records for each in partitions)
    document = {
        "version": VERSION,
        "model": plan.model,
        "source": dict(plan.source),
        "columns": {field.name: str(field.type) for field in plan.columns},
        "records": records,
        "rejected": rejected,
        "files": [
            {"file": file_key(number), "records": each.records, "bytes": each.size}
            for number, each in enumerate(partitions)
            if each.records
        ],
    }
    store.put(MANIFEST, (json.dumps(document, indent=1) + "\n").encode())
    rest = f", {rejected:,} rejected" if rejected else ""
    print(f"finalized {store.url}: {records:,} predictions{rest}")
    return f"{store.url}/{DATA}"


def _predicted(store: Store, number: int) -> PredictedPartition | None:
    try:
        return PredictedPartition.from_json(store.get(partition_key(number)))
    except MissingError:
        return None
