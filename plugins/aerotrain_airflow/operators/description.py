"""The job of a task instance: read from the operator, checked, and prepared for its start."""

from collections.abc import Iterator, Mapping
from dataclasses import replace
from logging import getLogger
from pathlib import Path
from typing import Any

from airflow.sdk import BaseOperator, Context

from aerotrain.contract.errors import SpecError, nearest
from aerotrain.contract.job import Job
from aerotrain.contract.layout import job_name, path_segment
from aerotrain.contract.steps import arguments_of
from aerotrain.user_code import publish_code
from aerotrain_airflow.operators.credentials import store_of
from aerotrain_airflow.settings import Settings

_LOG = getLogger(__name__)


def describe(
    task: BaseOperator,
    job: Mapping[str, Any],
    arguments: Mapping[str, Any],
    context: Context,
    settings: Settings,
) -> Job:
    """The complete, checked job of this task instance.

    Raises:
        SpecError: it cannot run; the message says why.
    """
    ti, given = context["ti"], job.get("arguments", {})
    if "hparams" in arguments:  # of one of several mapped trainings
        arguments = {**arguments, "hparams": [*given["hparams"], arguments["hparams"]]}
    described = Job.from_dict(
        {
            "code": models_folder(task),
            **job,
            "name": job_name(ti.dag_id, ti.run_id, task.task_id, ti.map_index or 0),
            **place_of(task, ti, settings),
            "made_from": _made_from(ti, settings),
            "arguments": {**given, **arguments},
        }
    )
    arguments_of(described)
    return _without_spot(described) if 0 < ti.max_tries < ti.try_number else described


def _without_spot(job: Job) -> Job:
    """The job of the last try, of which no replica runs on a spot node if any would."""
    if not any(each.spot for each in job.replicas):
        return job
    _LOG.info("this is the last try: it asks for no spot nodes")
    return replace(job, replicas=tuple(replace(each, spot=False) for each in job.replicas))


def place_of(task: BaseOperator, ti: Any, settings: Settings) -> dict[str, str]:
    """Where a task instance writes: the store of its pipeline, and the segments of run and task."""
    segment = path_segment(task.task_id)
    if ti.map_index is not None and ti.map_index >= 0:
        segment = f"{segment}/{ti.map_index}"
    return {
        "store": f"{settings.store}/{path_segment(ti.dag_id)}",
        "run": path_segment(ti.run_id),
        "task": segment,
    }


def _made_from(ti: Any, settings: Settings) -> dict[str, str]:
    """The version of the DAG bundle, if it has one, such as a Git commit; and the image of pods."""
    bundle = getattr(ti, "bundle_instance", None)
    found = {}
    if bundle is not None and bundle.version:
        found["DAG bundle"] = f"{bundle.name} {bundle.version}"
    if settings.launcher == "kubernetes":
        found["image"] = settings.image
    return found


def with_code_published(job: Job, settings: Settings, context: Context) -> Job:
    """The job with the modules of its DAG uploaded to the store, from which all replicas read them.

    All jobs of a DAG share the archive: ``evaluate`` runs the module that ``train`` names. With the
    model of another DAG, whose module is named nowhere here, they are all modules of the folder.
    """
    if job.code is None:
        return job
    tasks = context["dag"].tasks
    jobs = [getattr(task, "partial_kwargs", vars(task)).get("job", {}) for task in tasks]
    models = [each.get("arguments", {}).get("model") for each in jobs]
    names = set(_texts([job.recipe(), dict(context["params"]), jobs]))
    if any(isinstance(model, str) and "/" in model for model in models):
        names = set()
    return replace(job, code=publish_code(store_of(job.store, settings), Path(job.code), names))


def _texts(value: Any) -> Iterator[str]:
    """All texts in a value of JSON, and in what Airflow has not rendered of it."""
    if isinstance(value, str):
        yield value
    elif isinstance(value, Mapping):
        for each in value.values():
            yield from _texts(each)
    elif isinstance(value, list | tuple):
        for each in value:
            yield from _texts(each)


def check_run(context: Context) -> None:
    """Reject a run whose conf has a key that is not a param; Airflow itself ignores such a key.

    Raises:
        SpecError: a key is not a param; the message suggests the most similar one.
    """
    params = list(context["dag"].params)  # context["params"] would include the keys of conf
    for key in context["dag_run"].conf or {}:
        if key not in params:
            raise SpecError(
                f"the run's conf names {key!r}, which is no param of this DAG"
                f"{nearest(key, params)}; its params are {', '.join(params)}"
            )


def models_folder(task: BaseOperator) -> str | None:
    """The folder ``models`` next to the DAG file, where users keep their modules."""
    dag = task.get_dag()
    folder = Path(dag.fileloc).parent / "models" if dag else None
    return str(folder) if folder is not None and folder.is_dir() else None
