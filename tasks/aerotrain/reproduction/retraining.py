"""The training of a version once more, on this machine, and the comparison of its weights."""

import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from uuid import uuid4

import numpy as np
import tensorflow as tf

from aerotrain.contract.errors import ExitCode, FinalError, TemporaryError
from aerotrain.contract.job import Job
from aerotrain.contract.layout import JOB, RUNS
from aerotrain.contract.steps import arguments_of
from aerotrain.reproduction.origin import Origin
from aerotrain.standalone import run_replicas
from aerotrain.store import fetch, open_store
from aerotrain.training.checkpoints.checkpoints import FILE
from aerotrain.training.model_manifest import ModelManifest

#: Where a checkpoint describes its objects, and counts its saves, which are not values of a model.
_NOT_VALUES = ("_CHECKPOINTABLE_OBJECT_GRAPH", "save_counter")


@dataclass(frozen=True, kw_only=True)
class WeightsComparison:
    """How the variables of two checkpoints compare, the optimizer's among them.

    ``equal`` is the number of those of equal bits, ``differing`` has the greatest difference of
    each other one.
    """

    equal: int
    differing: Mapping[str, float]

    def __str__(self) -> str:
        if not self.differing:
            return f"all {self.equal} variables are equal to the last bit"
        worst = max(self.differing, key=lambda name: self.differing[name])
        return (
            f"{len(self.differing)} of {self.equal + len(self.differing)} variables differ, by at "
            f"most {self.differing[worst]:g}, in {worst}"
        )


def job_of(origin: Origin) -> Job:
    """The job that trains it again: all as it was, but under a run of its own.

    Raises:
        SpecError: this version of aerotrain does not accept its options.
    """
    trained, arguments = origin.trained, origin.arguments
    replicas = [
        {"role": each["role"], "count": each["count"]} for each in trained.recipe["replicas"]
    ]
    job = Job.from_dict(
        {
            "name": "reproduce",
            "module": "aerotrain.training.train",
            "store": origin.about["model"].rpartition(f"/{RUNS}/")[0],
            "run": f"reproduced-{time.strftime('%Y%m%dT%H%M%S')}-{uuid4().hex[:6]}",
            "task": "train",
            "strategy": trained.strategy,
            "replicas": replicas,
            "code": trained.code,
            "arguments": arguments,
        }
    )
    arguments_of(job)
    return job


def train(job: Job, scratch: Path, environment: Mapping[str, str]) -> ModelManifest:
    """Train it in processes of this machine; returns the manifest of its model.

    Raises:
        FinalError, TemporaryError: the training failed; its log says why.
    """
    open_store(job.prefix).put(JOB, job.record())
    code = run_replicas(job, scratch, environment)
    if code:
        is_temporary = code in (ExitCode.TEMPORARY, ExitCode.TERMINATED)
        kind = TemporaryError if is_temporary else FinalError
        raise kind(f"the training of run {job.run} ended with exit code {code}; see above")
    return ModelManifest.load(job.prefix)


def compare(was: ModelManifest, now: ModelManifest, scratch: Path) -> WeightsComparison:
    """Compare the checkpoints of two trained models.

    Raises:
        MissingError: one is gone.
    """
    one, other = (
        _values(trained.checkpoint, scratch / name)
        for name, trained in (("was", was), ("now", now))
    )
    differing = {}
    for name in sorted(one.keys() | other.keys()):
        if name not in one or name not in other or one[name].shape != other[name].shape:
            differing[name] = float("inf")
        elif one[name].tobytes() != other[name].tobytes():
            differing[name] = _distance(one[name], other[name])
    return WeightsComparison(
        equal=len(one.keys() | other.keys()) - len(differing), differing=differing
    )


def _values(checkpoint: str, folder: Path) -> dict[str, Any]:
    fetch(open_store(checkpoint), "", folder)
    reader = tf.train.load_checkpoint(str(folder / FILE))
    names = [
        name
        for name in reader.get_variable_to_shape_map()
        if not any(each in name for each in _NOT_VALUES)
    ]
    return {name: np.asarray(reader.get_tensor(name)) for name in names}


def _distance(one: Any, other: Any) -> float:
    if one.dtype != other.dtype or one.dtype.kind not in "fiu":
        return float("inf")
    return float(np.max(np.abs(one.astype(np.float64) - other.astype(np.float64))))
