"""Kinds of models under each strategy: what they learn, compared with ``fit``.

Each kind trains two epochs of the digits by ``fit`` on one device, and by a job under each
strategy, with the same batches and seeds. ``--large`` trains a model of 200 MB instead, and
measures its peak memory, that of ``fit``, and the longest stop for a checkpoint. The outcomes are
written to ``results/models.json``, which ``docs/models.md`` shows as tables.
"""

import argparse
import json
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from aerotrain.contract.event_log import EventType
from aerotrain.contract.job import Job
from aerotrain.contract.replicas import ReplicaSpec, Role
from aerotrain.standalone import CHIEF
from aerotrain.store import open_store
from aerotrain_airflow.goodput import events_of_chief
from benchmarks.environments import add_keras_hub
from benchmarks.fault_injection import Training
from benchmarks.replicas import Processes
from benchmarks.testbed import Testbed

MODELS = Path(__file__).parent / "models"
RESULTS = Path(__file__).parent / "results" / "models.json"
EPOCHS = 2

#: For each strategy: devices of each process, and replicas besides the chief.
STRATEGIES: Mapping[str, tuple[int, Mapping[Role, int]]] = {
    "one_device": (1, {}),
    "mirrored": (2, {}),
    "central_storage": (2, {}),
    "multi_worker_mirrored": (1, {Role.WORKER: 1}),
    "dtensor": (2, {}),
    "parameter_server": (1, {Role.WORKER: 2, Role.PS: 1}),
}

#: Rows of the table: a kind of ``models/kinds.py``, and the options of the training.
ROWS: Mapping[str, tuple[str, Mapping[str, Any]]] = {
    "dense layers, Adam": ("plain", {}),
    "Ftrl": ("ftrl", {}),
    "Lamb": ("lamb", {}),
    "Muon": ("muon", {}),
    "averaged weights (`use_ema`)": ("averaged weights", {}),
    "BatchNormalization": ("batch normalization", {}),
    "BatchNormalization, `synchronized_batch_norm`": (
        "batch normalization",
        {"synchronized_batch_norm": True},
    ),
    "Dropout": ("dropout", {}),
    # Few steps: after 80, initial weights that differ by 1e-7 have become other models.
    "MobileNetV3, `synchronized_batch_norm`": (
        "mobilenet",
        {"synchronized_batch_norm": True, "batch_size": 256},
    ),
    "a transformer, with embeddings": ("transformer", {}),
    "a transformer of KerasHub": ("kerashub", {}),
    "LoRA on Dense and Embedding": ("lora", {}),
    "frozen layers": ("frozen", {}),
    "a `train_step` of its own": ("own train_step", {}),
    "option `gradient_accumulation_steps`": ("plain", {"gradient_accumulation_steps": 2}),
    "the optimizer's `gradient_accumulation_steps`": ("accumulating", {}),
    "`mixed_bfloat16`": ("plain", {"dtype_policy": "mixed_bfloat16"}),
    "`mixed_float16`, which scales the loss": ("plain", {"dtype_policy": "mixed_float16"}),
}

#: The greatest relative distance of the weights, or of the loss, that is rounding; 16 bits round
#: more coarsely.
TOLERANCE, COARSE = 2e-3, 5e-2


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only", nargs="*", help="rows to measure; all others stay as they are")
    parser.add_argument("--strategies", nargs="*", default=list(STRATEGIES))
    parser.add_argument("--large", action="store_true", help="measure the model of 200 MB")
    parser.add_argument("--devices", type=int, help="run the jobs of stdin in this process")
    given = parser.parse_args()
    if given.devices:
        _run_here(given.devices, [Job.from_json(line) for line in sys.stdin])
        return
    with tempfile.TemporaryDirectory() as name:
        table = Table(Path(name), given.only or list(ROWS))
        if given.large:
            for strategy in given.strategies:
                _record("200 MB", strategy, table.large(strategy))
            return
        for strategy in given.strategies:
            for row, outcome in table.outcomes(strategy):
                _record(row, strategy, outcome)


def _record(row: str, strategy: str, outcome: Mapping[str, Any]) -> None:
    print(row, strategy, outcome, flush=True)
    known = json.loads(RESULTS.read_text()) if RESULTS.exists() else {}
    known.setdefault(row, {})[strategy] = outcome
    RESULTS.write_text(json.dumps(known, indent=1) + "\n")


def _run_here(devices: int, jobs: Iterable[Job]) -> None:
    """Run each job's chief in this process, which imports TensorFlow only once."""
    import keras
    import tensorflow as tf

    from aerotrain.replica import Replica, run_replica

    [cpu] = tf.config.list_physical_devices("CPU")
    each = [tf.config.LogicalDeviceConfiguration()] * devices
    tf.config.set_logical_device_configuration(cpu, each)
    for job in jobs:
        keras.backend.clear_session()
        # TensorFlow expects one such strategy for the life of a process; its tests do this, too.
        tf.distribute.MirroredStrategy._collective_key_base += 100_000  # noqa: SLF001 -- as above
        scratch = Path.cwd() / job.run
        scratch.mkdir()
        print(f"job {job.run}", flush=True)
        run_replica(Replica(job=job, name=CHIEF, attempt="1", scratch=scratch))


class Table:
    """Trainings of the models of ``rows``, whose code, data and results are in ``folder``."""

    def __init__(self, folder: Path, rows: list[str]) -> None:
        self._code = folder / "code"
        shutil.copytree(MODELS, self._code)
        if "a transformer of KerasHub" in rows:
            add_keras_hub(self._code)
        self._testbed = Testbed.prepared(folder)
        self._rows = rows
        self._runs = 0
        self._fits: dict[str, tuple[list[Any], float]] = {}
        sys.path.insert(0, str(self._code))

    def outcomes(self, strategy: str) -> Iterator[tuple[str, dict[str, Any]]]:
        """Each row's outcome under ``strategy``."""
        jobs = {row: self._job(strategy, self._arguments(row)) for row in self._rows}
        said = {}
        if not STRATEGIES[strategy][1]:
            said = self._in_one_process(STRATEGIES[strategy][0], jobs)
        for row, job in jobs.items():
            text = said[job.run] if said else self._of_replicas(job)
            yield row, self._outcome(row, job, text)

    def _arguments(self, row: str) -> dict[str, Any]:
        kind, options = ROWS[row]
        common = {"model": "kinds", "data": self._testbed.data, "epochs": EPOCHS}
        return {**common, **options, "hparams": {"kind": kind}}

    def _job(self, strategy: str, arguments: Mapping[str, Any]) -> Job:
        self._runs += 1
        others = STRATEGIES[strategy][1]
        return Job(
            name=f"models-{self._runs}",
            module="aerotrain.train",
            store=self._testbed.store,
            run=f"run-{self._runs}",
            task="train",
            strategy=strategy,
            arguments=arguments,
            code=str(self._code),
            replicas=(
                ReplicaSpec(role=Role.CHIEF),
                *(ReplicaSpec(role=role, count=count) for role, count in others.items()),
            ),
        )

    def _in_one_process(self, devices: int, jobs: Mapping[str, Job]) -> dict[str, str]:
        """What each job of a chief alone says, by its run."""
        folder = self._testbed.folder / f"devices-{self._runs}"
        folder.mkdir()
        root = Path(__file__).parents[1]
        done = subprocess.run(
            [sys.executable, "-m", "benchmarks.model_table", "--devices", str(devices)],
            cwd=folder,
            env={"PYTHONPATH": f"{root}:{root / 'tasks'}:{root / 'plugins'}", "PATH": "/usr/bin"},
            input="".join(f"{job.to_json()}\n" for job in jobs.values()),
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            check=False,
        )
        parts = re.split(r"^job (run-\d+)$", done.stdout, flags=re.MULTILINE)
        found = dict(zip(parts[1::2], parts[2::2], strict=True))
        return {job.run: found.get(job.run, done.stdout[-2000:]) for job in jobs.values()}

    def large(self, strategy: str) -> dict[str, Any]:
        """Peak memory in MiB of a model of 200 MB, and of its ``fit``; the longest stop by a save.

        The memory is that of the replica that takes most.
        """
        hparams = {"kind": "large"}
        common = {"model": "kinds", "data": self._testbed.data, "epochs": 2, "hparams": hparams}
        fit = self._job("one_device", common)
        job = self._job(strategy, {**common, "checkpoint_interval": 2, "steps_per_execution": 10})
        with Processes(self._testbed.folder) as processes:
            ours = processes.run(job, devices=STRATEGIES[strategy][0]).memory
            theirs = processes.run(fit, "benchmarks.fit", ["1"]).memory
        events = events_of_chief(open_store(job.prefix))
        stalls = [each.seconds for each in events if each.event is EventType.SAVE_STALL]
        return {
            "replicas": {name: round(each) for name, each in ours.items()},
            "fit": round(theirs["chief"]),
            "stall": round(max(stalls), 3),
            "saves": len(stalls),
        }

    def _of_replicas(self, job: Job) -> str:
        with Training(self._testbed.launcher, job) as training:
            training.end.result()
            return "\n".join(line for _, line in training.lines)

    def _fit(self, row: str) -> tuple[list[Any], float]:
        """The weights and the last loss of ``fit`` on one device, with the same batches."""
        from aerotrain.contract.training import TrainArguments
        from aerotrain.data.dataset import load_dataset
        from aerotrain.training.input_pipeline import InputPipeline
        from aerotrain.training.model.code import UserCode
        from aerotrain.training.model.keras_adapter import KERAS

        if row in self._fits:
            return self._fits[row]
        job, code = self._job("one_device", self._arguments(row)), UserCode.load("kinds")
        arguments = TrainArguments.of(job.arguments)
        scratch = self._testbed.folder / f"fit-{self._runs}"
        scratch.mkdir()
        feed = InputPipeline(
            job=job,
            arguments=arguments,
            dataset=load_dataset(arguments.data),
            code=code,
            scratch=scratch,
        )
        KERAS.seed(arguments.seed)
        model = code.build(arguments.all_hparams, feed.spec, arguments.dtype_policy)
        steps = feed.schedule.steps_per_epoch
        with feed.caching_shards():
            history = model.fit(feed.local(0), epochs=EPOCHS, steps_per_epoch=steps, verbose=0)
        self._fits[row] = model.get_weights(), float(history.history["loss"][-1])
        return self._fits[row]

    def _outcome(self, row: str, job: Job, said: str) -> dict[str, Any]:
        from aerotrain.data.dataset import load_dataset
        from aerotrain.training.input.batches import batch_spec
        from aerotrain.training.model.code import UserCode
        from aerotrain.training.model_manifest import ModelManifest

        if errors := re.findall(r"error: (.*)$", said, re.MULTILINE):
            refused = "refused" if "progress" not in said else "failed"
            return {"outcome": refused, "said": errors[-1]}
        code = UserCode.load("kinds")
        trained = ModelManifest.load(f"{job.prefix}/model.json")
        spec = batch_spec(load_dataset(self._testbed.data).schema, code.transform)
        model = trained.restore(code, spec, self._testbed.folder / f"restored-{job.run}")
        weights, loss = self._fit(row)
        tolerance = COARSE if "mixed" in trained.dtype_policy else TOLERANCE
        own = trained.metrics["loss"]
        distance = _distance(model.get_weights(), weights)
        equal = bool(np.isclose(own, loss, rtol=tolerance)) and distance <= tolerance
        return {
            "outcome": "equal" if equal else "differs",
            "loss": round(own, 4),
            "fit": round(loss, 4),
            "weights": round(distance, 5),
        }


def _distance(ours: list[NDArray[Any]], other: list[NDArray[Any]]) -> float:
    """The distance of all weights of two models, relative to their norm.

    A single weight may differ more: a gradient that is 0 but for rounding, such as that of the bias
    of a key of attention, moves it by a whole step of Adam.
    """
    one, two = (np.concatenate([np.ravel(each) for each in model]) for model in (ours, other))
    return float(np.linalg.norm(one.astype(np.float64) - two) / np.linalg.norm(two))


if __name__ == "__main__":
    main()
