"""The models and data of the benchmarks, and jobs that train them."""

import sys
from collections.abc import Mapping, Sequence
from contextlib import redirect_stdout
from dataclasses import asdict, dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np

from aerotrain.contract.job import Job
from aerotrain.contract.replicas import ReplicaSpec, Role
from aerotrain.contract.strategy import STRATEGIES
from aerotrain.data.dataset import Schema, Shard
from aerotrain.data.records.columns import Column
from aerotrain.data.records.framing import encoded_frames
from aerotrain.standalone import prepare
from aerotrain.store.manifest import StoredFile
from benchmarks.report import ROOT

#: The modules of the benchmarks, and those of the example pipelines.
MODELS, EXAMPLES = Path(__file__).parent / "models", ROOT / "dags" / "models"

PER_EXECUTION, BATCH, EPOCHS = 50, 32, 2

#: More arguments of a training by strategy, for equal work on two devices.
ALSO = {"dtensor": {"mesh": {"batch": 2}}}

#: Virtual CPU devices of each process by strategy, 1 by default: there are no others to mirror on.
DEVICES = {"mirrored": 2, "central_storage": 2}

#: The strategies that each Keras's ``fit`` supports, of those that are compared.
FIT_WORKS = {
    "keras3": ("one_device", "mirrored"),
    "tf_keras": ("one_device", "mirrored", "multi_worker_mirrored", "parameter_server"),
}


@dataclass(frozen=True)
class Workload:
    """A model, its data and its strategies; its figures' names end in ``suffix``."""

    name: str
    module: str
    suffix: str = ""
    strategies: Sequence[str] = ()
    hparams: Mapping[str, Any] = field(default_factory=dict)


DENSE = Workload("dense", "fashion", "", (*FIT_WORKS["tf_keras"], "central_storage", "dtensor"))
CONVOLUTIONS = Workload(
    "convolutions", "fashion", "_convolutions", ("one_device",), {"convolutions": True}
)
EMBEDDING = Workload("embedding", "words", "_embedding", ("one_device", "parameter_server"))
#: The same model with our layer, compared with ``fit`` with Keras's layer.
SHARDED = Workload(
    "sharded embedding", "words", "_sharded_embedding", ("parameter_server",), {"sharded": True}
)


class Jobs:
    """Makes trainings, each a run of its own, on data sets that it prepares below ``folder``."""

    def __init__(
        self, folder: Path, *, models: Path = MODELS, store: str = "", code: str = ""
    ) -> None:
        self.store = store or (folder / "store").as_uri()
        self.code = code or str(models)
        self._folder = folder
        self._runs = 0
        self._data: dict[str, str] = {}
        sys.path[:0] = [str(models), str(EXAMPLES)]

    def data(self, module: str, **rules: Any) -> str:
        """The URL of the data set whose source is ``module``."""
        if module not in self._data:
            # Under one name, a second data set would be compared with the first, for drift.
            given = {"name": module, "shards": 4, **rules}
            with redirect_stdout(sys.stderr):
                self._data[module] = prepare(self.store, self._folder / "scratch", module, **given)
        return self._data[module]

    def train(self, strategy: str, arguments: Mapping[str, Any], **more: Any) -> Job:
        """A training by as many replicas as the strategy has by default; ``more`` is of the job."""
        self._runs += 1
        rules = STRATEGIES[strategy]
        counts = {Role.CHIEF: 1, Role.WORKER: rules.workers, Role.PS: rules.ps}
        run = f"run-{self._runs}"
        return Job(
            name=f"benchmark-{run}",
            module="aerotrain.training.train",
            store=self.store,
            run=run,
            task="train",
            strategy=strategy,
            arguments=arguments,
            code=self.code,
            replicas=tuple(
                ReplicaSpec(role=role, count=count) for role, count in counts.items() if count
            ),
            **more,
        )

    def of(self, workload: Workload, strategy: str, train: float = 0.98) -> Job:
        """A training of ``workload``, by the share ``train`` of its records."""
        splits = {"train": train, "test": 1 - train}
        arguments = {
            "model": workload.module,
            "data": self.data(workload.module, splits=splits),
            "epochs": EPOCHS,
            "batch_size": BATCH,
            "steps_per_execution": PER_EXECUTION,
            "hparams": workload.hparams,
            **ALSO.get(strategy, {}),
        }
        return self.train(strategy, arguments)


def write_shards(
    folder: Path, schema: Schema, columns: Mapping[str, np.ndarray], count: int
) -> list[Shard]:
    """Write the records of ``columns``, in their order, as so many shards into ``folder``."""
    folder.mkdir(parents=True, exist_ok=True)
    records = len(next(iter(columns.values())))
    shards = []
    edges = [records * number // count for number in range(count + 1)]
    for number, (first, last) in enumerate(pairwise(edges)):
        part = {key: Column(schema[key], values[first:last]) for key, values in columns.items()}
        file = folder / f"train-{number:05d}"
        file.write_bytes(encoded_frames(part).content)
        stored = asdict(StoredFile.of(file))
        shards.append(Shard(file=file.name, records=last - first, **stored))
    return shards
