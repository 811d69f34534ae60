"""Kinds of models under each strategy: what they learn, compared with ``fit``.

Each kind trains two epochs of the digits by ``fit`` on one device, and by a job under each
strategy, with the same batches and seeds. ``--large`` trains a model of 200 MB instead, and
measures its peak memory, that of ``fit``, and the longest stop for a checkpoint. The outcomes are
written to ``results/models.json``, which ``docs/models.md`` shows as tables; those of ``--quick``,
two kinds under one strategy, are not. The figures are the number of each outcome.
"""

import json
import os
import re
import shutil
import subprocess
import sys
from argparse import Namespace
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from aerotrain.contract.event_log import EventType
from aerotrain.contract.job import Job
from aerotrain.contract.strategy import STRATEGIES
from aerotrain.contract.training import TrainArguments
from aerotrain.data.dataset import load_dataset
from aerotrain.store import open_store
from aerotrain.training.input.batches import batch_spec
from aerotrain.training.input_pipeline import InputPipeline
from aerotrain.training.model.code import UserCode
from aerotrain.training.model.keras_adapter import KERAS
from aerotrain.training.model_manifest import ModelManifest
from aerotrain_airflow.goodput import events_of_chief
from benchmarks.replicas import run_job
from benchmarks.report import Report, run
from benchmarks.workloads import ALSO, EPOCHS, MODELS, Jobs

RESULTS = Path(__file__).parent / "results" / "models.json"

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


def measure(given: Namespace, folder: Path) -> Report:
    """The outcome of each row under each strategy."""
    rows = ["dense layers, Adam", "BatchNormalization"] if given.quick else given.only or [*ROWS]
    table = Table(folder, rows)
    found = []
    for strategy in ["mirrored"] if given.quick else given.strategies:
        measured = [("200 MB", table.large(strategy))] if given.large else table.rows(strategy)
        for row, outcome in measured:
            found.append({"model": row, "strategy": strategy, "outcome": json.dumps(outcome)})
            print(found[-1])
            if not given.quick:
                _record(row, strategy, outcome)
    return Report(
        found, Counter(json.loads(each["outcome"]).get("outcome", "measured") for each in found)
    )


def _record(row: str, strategy: str, outcome: Mapping[str, Any]) -> None:
    known = json.loads(RESULTS.read_text()) if RESULTS.exists() else {}
    known.setdefault(row, {})[strategy] = outcome
    RESULTS.write_text(json.dumps(known, indent=1) + "\n")


class Table:
    """Trainings of the models of ``rows``, whose code, data and results are in ``folder``."""

    def __init__(self, folder: Path, rows: Sequence[str]) -> None:
        self._folder = folder
        code = folder / "code"
        shutil.copytree(MODELS, code)
        if "a transformer of KerasHub" in rows:
            add_keras_hub(code)
        self._names = rows
        self._jobs = Jobs(folder, models=code)
        self._fit = cache(self._fit_of)

    def rows(self, strategy: str) -> Iterator[tuple[str, dict[str, Any]]]:
        """Each row's outcome under ``strategy``."""
        for name in self._names:
            kind, options = ROWS[name]
            job = self._job(strategy, kind, **options)
            text = run_job(job, self._folder, may_fail=True).text
            yield name, self._outcome(name, job, text)

    def _job(self, strategy: str, kind: str, **options: Any) -> Job:
        common = {"model": "kinds", "data": self._jobs.data("digits"), "epochs": EPOCHS}
        arguments = {**common, **ALSO.get(strategy, {}), **options, "hparams": {"kind": kind}}
        return self._jobs.train(strategy, arguments)

    def large(self, strategy: str) -> dict[str, Any]:
        """Peak memory in MiB of a model of 200 MB, and of its ``fit``; the longest stop by a save.

        The memory is that of the replica that takes most.
        """
        job = self._job(strategy, "large", checkpoint_interval=2, steps_per_execution=10)
        ours = run_job(job, self._folder).memory
        fit = self._job("one_device", "large")
        theirs = run_job(fit, self._folder, "benchmarks.fit", ["1"]).memory
        events = events_of_chief(open_store(job.prefix))
        stalls = [each.seconds for each in events if each.event is EventType.SAVE_STALL]
        return {
            "replicas": {name: round(each) for name, each in ours.items()},
            "fit": round(theirs["chief"]),
            "stall": round(max(stalls), 3),
            "saves": len(stalls),
        }

    def _fit_of(self, name: str) -> tuple[list[Any], float]:
        """The weights and the last loss of ``fit`` on one device, with the same batches."""
        kind, options = ROWS[name]
        job, code = self._job("one_device", kind, **options), UserCode.load("kinds")
        arguments = TrainArguments.from_dict(job.arguments)
        dataset, scratch = load_dataset(arguments.data), self._folder / f"fit-{job.run}"
        scratch.mkdir()
        feed = InputPipeline(
            job=job, arguments=arguments, dataset=dataset, code=code, scratch=scratch
        )
        KERAS.seed(arguments.seed)
        model = code.build(arguments.all_hparams, feed.spec, arguments.dtype_policy)
        steps = feed.schedule.steps_per_epoch
        with feed.caching_shards():
            history = model.fit(feed.local(0), epochs=EPOCHS, steps_per_epoch=steps, verbose=0)
        return model.get_weights(), float(history.history["loss"][-1])

    def _outcome(self, name: str, job: Job, text: str) -> dict[str, Any]:
        if errors := re.findall(r"error: (.*)$", text, re.MULTILINE):
            outcome = "refused" if "progress" not in text else "failed"
            return {"outcome": outcome, "said": errors[-1]}
        code = UserCode.load("kinds")
        trained = ModelManifest.load(f"{job.prefix}/model.json")
        spec = batch_spec(load_dataset(self._jobs.data("digits")).schema, code.transform)
        model = trained.restore(code, spec, self._folder / f"restored-{job.run}")
        weights, loss = self._fit(name)
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


def add_keras_hub(folder: Path) -> None:
    """Install KerasHub into ``folder``; without its requirements for texts and for downloads."""
    uv = os.environ.get("UV") or shutil.which("uv")
    if not uv:
        sys.exit("uv, which installs KerasHub, is not on the PATH, and UV does not name it")
    # tensorflow-text, which it requires too, would replace tensorflow-cpu.
    hub = ["keras-hub==0.32.*", "kagglehub", "kagglesdk"]
    packages = [*hub, "regex", "sentencepiece", "tokenizers", "tqdm"]
    words = ["pip", "install", "--quiet", "--no-deps", "--python", sys.executable]
    subprocess.run([uv, *words, "--target", str(folder), *packages], check=True)


def _distance(ours: list[NDArray[Any]], other: list[NDArray[Any]]) -> float:
    """The distance of all weights of two models, relative to their norm.

    A single weight may differ more: a gradient that is 0 but for rounding, such as that of the bias
    of a key of attention, moves it by a whole step of Adam.
    """
    one, two = (np.concatenate([np.ravel(each) for each in model]) for model in (ours, other))
    return float(np.linalg.norm(one.astype(np.float64) - two) / np.linalg.norm(two))


if __name__ == "__main__":
    run(
        measure,
        __doc__,
        only={"nargs": "*", "help": "rows to measure; all others stay as they are"},
        strategies={"nargs": "*", "default": list(STRATEGIES)},
        large={"action": "store_true", "help": "measure the model of 200 MB"},
    )
