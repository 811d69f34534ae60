"""The models and data of the benchmarks of strategies, and jobs that train them."""

import sys
from collections.abc import Mapping, Sequence
from contextlib import redirect_stdout
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from aerotrain.contract.job import Job
from aerotrain.contract.replicas import ReplicaSpec, Role
from aerotrain.contract.strategy import STRATEGIES
from aerotrain.standalone import prepare

MODELS = Path(__file__).parent / "models"
PER_EXECUTION = 50
BATCH = 32
EPOCHS = 2

#: More arguments of a training by strategy, for equal work on two devices.
ALSO = {"dtensor": {"mesh": {"batch": 2}}}

#: The shares of the splits: where speed is measured, nearly all records are to train on.
SPLITS = {"train": 0.98, "test": 0.02}

#: Of the compared strategies, those that each Keras's ``fit`` supports.
FIT_WORKS = {
    "keras3": ("one_device", "mirrored"),
    "tf_keras": ("one_device", "mirrored", "multi_worker_mirrored", "parameter_server"),
}


@dataclass(frozen=True)
class Workload:
    """A model, its data and its strategies; its figures' names end in ``suffix``."""

    name: str
    module: str
    suffix: str
    strategies: Sequence[str]
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


def training_job(
    store: str,
    run: str,
    strategy: str,
    arguments: Mapping[str, Any],
    code: str = str(MODELS),
    **more: Any,
) -> Job:
    """A training by as many replicas as the strategy has by default; ``more`` is of the job."""
    rules = STRATEGIES[strategy]
    replicas = [ReplicaSpec(role=Role.CHIEF)]
    for role, count in ((Role.WORKER, rules.workers), (Role.PS, rules.ps)):
        replicas += [ReplicaSpec(role=role, count=count)] if count else []
    return Job(
        name=f"benchmark-{run}",
        module="aerotrain.training.train",
        store=store,
        run=run,
        task="train",
        strategy=strategy,
        arguments=arguments,
        code=code,
        replicas=tuple(replicas),
        **more,
    )


class Jobs:
    """Makes jobs, each a run of its own, on data sets that it prepares in ``folder``."""

    def __init__(self, folder: Path, splits: Mapping[str, float] = SPLITS) -> None:
        self._folder = folder
        self._store = (folder / "store").as_uri()
        self._splits = splits
        self._runs = 0
        self._data: dict[str, str] = {}
        sys.path.insert(0, str(MODELS))

    def train(self, workload: Workload, strategy: str, **more: Any) -> Job:
        """A job that trains ``workload``; ``more`` are arguments of the training."""
        if workload.module not in self._data:
            self._data[workload.module] = self._prepared(workload.module)
        self._runs += 1
        arguments = {
            "model": workload.module,
            "data": self._data[workload.module],
            "epochs": EPOCHS,
            "batch_size": BATCH,
            "steps_per_execution": PER_EXECUTION,
            "hparams": workload.hparams,
            **ALSO.get(strategy, {}),
            **more,
        }
        return training_job(self._store, f"run-{self._runs}", strategy, arguments)

    def _prepared(self, module: str) -> str:
        """The URL of the data set whose source is ``module``."""
        with redirect_stdout(sys.stderr):
            # Under one name, the second data set would be compared with the first, for drift.
            more = {"name": module, "splits": self._splits, "shards": 4}
            return prepare(self._store, self._folder / "scratch", module, **more)
