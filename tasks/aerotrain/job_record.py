"""What a job was started with: ``job.json`` in its place in the store, written before it starts.

From it, retention learns what a running job reads, before the job has written anything.
"""

import json

from aerotrain.contract.job import Job
from aerotrain.contract.layout import JOB
from aerotrain.store import Store

VERSION = 1


def record(store: Store, job: Job) -> None:
    """Write what ``job``, whose output goes to ``store``, is started with."""
    document = {"version": VERSION, **job.recipe()}
    store.put(JOB, (json.dumps(document, sort_keys=True, indent=1) + "\n").encode())
