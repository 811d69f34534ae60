"""The last step of ``predict``: check that all partitions are there, and publish the manifest."""

import json

from aerotrain.contract.layout import DATA
from aerotrain.contract.preparing import FinalizeArguments
from aerotrain.data.partitions import key_of, written_partitions
from aerotrain.prediction.partition import FILE
from aerotrain.prediction.plan import PredictionPlan
from aerotrain.replica import Replica
from aerotrain.store import MANIFEST, open_store


def run(replica: Replica) -> str:
    """Finalize the predictions, unless they are finalized already.

    Returns:
        The URL of the folder of their Parquet files, which have one row for each record.

    Raises:
        FinalError: a partition is missing, or too many records were rejected.
    """
    store = open_store(FinalizeArguments.from_dict(replica.job.arguments).output)
    plan = PredictionPlan.read(store)
    if store.exists(MANIFEST):
        print(f"already finalized: {store.url}")
        return f"{store.url}/{DATA}"
    partitions, rejections = written_partitions(store, plan)
    records = sum(each.records for each in partitions)
    document = {
        "version": plan.VERSION,
        "model": plan.model,
        "source": dict(plan.source),
        "columns": {field.name: str(field.type) for field in plan.columns},
        "records": records,
        "rejected": rejections.count,
        "files": [
            {"file": key_of(FILE, number), "records": each.records, "bytes": each.about["bytes"]}
            for number, each in enumerate(partitions)
            if each.records
        ],
    }
    store.put(MANIFEST, (json.dumps(document, indent=1) + "\n").encode())
    rest = f", {rejections.count:,} rejected" if rejections.count else ""
    print(f"finalized {store.url}: {records:,} predictions{rest}")
    return f"{store.url}/{DATA}"
