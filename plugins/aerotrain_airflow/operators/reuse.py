"""Results of earlier runs, for tasks whose inputs are the same.

``reuse/<key>.json`` in a pipeline's store says what a job has returned. The key is a hash of all
that the result depends on: the data set, whose URL has a fingerprint, the user's code, the module
and its arguments but those of recovery, the strategy, the replicas, and the image or the packages;
and the served version, where the job reads it. A record is written once its task has succeeded.
"""

import hashlib
import json
import platform
import sys
from contextlib import suppress
from pathlib import Path
from typing import Any

from aerotrain.contract.gate import SERVING
from aerotrain.contract.job import Job
from aerotrain.contract.layout import (
    CARD,
    CARD_DATA,
    CURVES,
    METRICS,
    RESULT,
    REUSED,
    RUN_LOG,
    VERSIONS,
    reuse_key,
)
from aerotrain.contract.options import Section, options_of
from aerotrain.contract.steps import ARGUMENTS, arguments_of
from aerotrain.serving.alias import served_number
from aerotrain.store import MANIFEST, MissingError, Store
from aerotrain_airflow.operators.credentials import store_of
from aerotrain_airflow.settings import Settings

#: What Airflow's UI shows of the output of a task.
_SHOWN = (CURVES, RUN_LOG, CARD, CARD_DATA, METRICS)


def key_of(job: Job, settings: Settings) -> str:
    """The key of a job, whose code was published."""
    versions = store_of(f"{job.store}/{VERSIONS}", settings)
    described = {
        "module": job.module,
        "strategy": job.strategy,
        "arguments": _determining(job),
        "code": job.code,
        "image": job.made_from.get("image"),
        "packages": _packages(settings),
        "served": served_number(versions) if _reads_served(job) else None,
        "replicas": [
            (each.role, each.count, each.resources.gpu, each.resources.tpu, each.environment)
            for each in job.replicas
        ],
    }
    return hashlib.sha256(json.dumps(described, sort_keys=True).encode()).hexdigest()


def _determining(job: Job) -> dict[str, Any]:
    """The arguments on which the result depends; a checkpoint more or less changes none."""
    owner = ARGUMENTS.get(job.module)
    options = options_of(owner) if owner else {}
    recovery = {name for name, e in options.items() if e.option.section is Section.RECOVERY}
    return {name: value for name, value in job.arguments.items() if name not in recovery}


def _packages(settings: Settings) -> list[Any] | None:
    """What local processes import: the interpreter and, if it is Airflow's own, its packages."""
    if settings.launcher != "process":
        return None
    if settings.python != sys.executable:
        return [settings.python]
    # By the names of their metadata: reading its files takes half a second.
    found = {each.name for folder in sys.path for each in Path(folder).glob("*-info")}
    return [platform.python_version(), *sorted(found)]


def _reads_served(job: Job) -> bool:
    """Whether the result depends on which version is served."""
    if job.module == "aerotrain.evaluation.evaluate":
        evaluation = arguments_of(job)
        return evaluation.compares and evaluation.baseline == SERVING
    return job.arguments.get("start_from") == SERVING


def earlier_result(key: str, job: Job, settings: Settings) -> dict[str, Any] | None:
    """What an earlier job with this key has returned, as ``remember`` wrote it.

    None if its output is not there any more. What the UI shows is copied to the output of ``job``.
    """
    try:
        found: dict[str, Any] = json.loads(store_of(job.store, settings).get(reuse_key(key)))
    except MissingError:
        return None
    source, target = store_of(found["prefix"], settings), store_of(job.prefix, settings)
    if not _is_there(found["value"], source, settings):
        return None
    reused = {"run": found["run"], "prefix": found["prefix"]}
    target.put(REUSED, json.dumps(reused).encode())
    for each in _SHOWN:
        with suppress(MissingError):
            target.put(each, source.get(each))
    return found


def remember(key: str, run: str, job: Job, value: Any, settings: Settings) -> None:
    """Record the value that the job has returned in the run of that id."""
    content = {"run": run, "prefix": job.prefix, "value": value}
    store_of(job.store, settings).put(reuse_key(key), json.dumps(content).encode())


def _is_there(value: Any, output: Store, settings: Settings) -> bool:
    """Whether the model or the version still exists, if the value is its URL."""
    if not isinstance(value, str):
        return output.exists(RESULT)
    folder, _, name = value.rpartition("/")
    if name.endswith(".json"):
        return store_of(folder, settings).exists(name)
    return store_of(value, settings).exists(MANIFEST)
