"""Predictions of a table by the steps of ``predict``, compared with ``model.predict`` of an array.

Both predict the same records by the same network, in batches of one size, on one core.
"""

import io
import os
import tempfile
import time
from collections.abc import Callable
from contextlib import redirect_stdout
from pathlib import Path
from types import ModuleType
from typing import Any

import keras
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from aerotrain.contract.job import Job
from aerotrain.data.dataset import Schema
from aerotrain.prediction import finalize, partition, plan
from aerotrain.replica import Replica
from aerotrain.serving.servable import Servable
from aerotrain.standalone import CHIEF
from aerotrain.store import open_store, publish
from benchmarks.report import in_turns

MEMORY, PREDICT = "model.predict of an array in memory", "predict, from Parquet to Parquet"


def on_one_core(
    build: Callable[[], keras.Model],
    transform: Callable[[Any], Any],
    schema: Schema,
    x: np.ndarray,
    *,
    batch: int,
    rounds: int,
) -> dict[str, list[float]]:
    """The seconds of both in each round; the columns of ``x`` are those of ``schema``, in order."""
    os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})
    model = build()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        table = pa.table({"number": np.arange(len(x))} | dict(zip(schema, x.T, strict=False)))
        pq.write_table(table, folder / "table.parquet")
        Servable(model, transform, schema).save(folder / "saved")
        store = open_store((folder / "store").as_uri())
        publish(store, folder / "saved", "serving/1", {})
        source = {"kind": "parquet", "url": (folder / "table.parquet").as_uri()}

        def step(module: ModuleType, **arguments: Any) -> Any:
            with tempfile.TemporaryDirectory(dir=folder) as scratch:
                job = Job(
                    name="predict",
                    module=module.__name__,
                    store=store.url,
                    run="run",
                    task="predict",
                    arguments=arguments,
                )
                replica = Replica(job=job, name=CHIEF, attempt="1", scratch=Path(scratch))
                with redirect_stdout(io.StringIO()):
                    return module.run(replica)

        def by_steps() -> float:
            begin = time.monotonic()
            planned = step(plan, model="serving", source=source, keep=["number"], batch_size=batch)
            for each in planned["partitions"]:
                step(partition, **each)
            step(finalize, predictions=planned["predictions"])
            seconds = time.monotonic() - begin
            for key in open_store(planned["predictions"]).list():
                open_store(planned["predictions"]).delete(key.key)
            return seconds

        def in_memory() -> float:
            begin = time.monotonic()
            model.predict(x, batch_size=batch, verbose=0)
            return time.monotonic() - begin

        contestants = {MEMORY: in_memory, PREDICT: by_steps}
        in_turns(contestants, 1)  # not counted: it traces
        return in_turns(contestants, rounds)
