"""The training of a version once more, on this machine, and the comparison of its weights."""

import time
from collections.abc import Mapping
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


def compare(was: ModelManifest, now: ModelManifest, scratch: Path) -> tuple[int, dict[str, float]]:
    """Compare the checkpoints of two trained models, the variables of the optimizer among them.

    Returns:
        The number of variables of equal bits, and the greatest difference of each other one.

    Raises:
        MissingError: one is gone.
    """
    one, other = (
        _values(trained.checkpoint, scratch / name)
        for name, trained in (("was", was), ("now", now))
    )
    names = one.keys() | other.keys()
    differing = {
        name: difference
        for name in sorted(names)
        if (difference := _difference(one.get(name), other.get(name))) is not None
    }
    return len(names) - len(differing), differing


def result(equal: int, differing: Mapping[str, float]) -> str:
    """What ``compare`` has found, in a sentence."""
    if not differing:
        return f"all {equal} variables are equal to the last bit"
    worst = max(differing, key=lambda name: differing[name])
    return (
        f"{len(differing)} of {equal + len(differing)} variables differ, by at most "
        f"{differing[worst]:g}, in {worst}"
    )


def _values(checkpoint: str, folder: Path) -> dict[str, Any]:
    fetch(open_store(checkpoint), "", folder)
    reader = tf.train.load_checkpoint(str(folder / FILE))
    return {
        name: np.asarray(reader.get_tensor(name))
        for name in reader.get_variable_to_shape_map()
        if not any(each in name for each in _NOT_VALUES)
    }


def _difference(one: Any, other: Any) -> float | None:
    """The greatest difference; None if the bits are equal, infinity if they are not comparable."""
    if one is None or other is None or (one.dtype, one.shape) != (other.dtype, other.shape):
        return float("inf")
    if one.tobytes() == other.tobytes():
        return None
    if one.dtype.kind not in "fiu":
        return float("inf")
    return float(np.max(np.abs(one.astype(np.float64) - other.astype(np.float64))))
