"""The first task of a pipeline: it checks everything that can be checked before the start."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from airflow.sdk import BaseOperator, Context, XComArg

from aerotrain.contract.errors import FinalError, SpecError
from aerotrain.contract.job import Job
from aerotrain.contract.names import path_segment
from aerotrain.contract.preparing import PlanArguments
from aerotrain.store import probe
from aerotrain_airflow.backends.launcher import choose_launcher
from aerotrain_airflow.credentials import store_of
from aerotrain_airflow.description import check_conf, describe, with_code_published
from aerotrain_airflow.operator import JobOperator, translated
from aerotrain_airflow.settings import Settings

#: Placeholder for the output of another task.
_PENDING = "(another task's output)"


class PreflightOperator(BaseOperator):
    """Check the run's conf, every job of the DAG, the store, and the launcher.

    ``launcher`` and ``dry_run`` are as for ``JobOperator``. A dry run shows what each job that is
    known at this point would start.

    Raises:
        AirflowFailException: something cannot work; the message lists all errors.
        AirflowException: a temporary failure: the store or the cluster does not respond, or the
            disk is full.
    """

    template_fields = ("launcher", "is_dry_run")

    def __init__(self, *, launcher: Any = None, dry_run: Any = False, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.launcher = launcher
        self.is_dry_run = dry_run

    def execute(self, context: Context) -> None:
        with translated():
            settings = Settings.read(self.launcher)
            check_conf(context)
            jobs = self._check_jobs(context, settings)
            url = f"{settings.store}/{path_segment(self.dag_id)}"
            probe(store_of(url, settings))
            self._check_plans(jobs, settings, str(context["ti"].id))
        self.log.info("the run can start: its jobs, its store %s and its launcher are fine", url)

    def _check_plans(self, jobs: Sequence[Job], settings: Settings, attempt: str) -> None:
        """Check with the launcher that every job could start; in a dry run, log the plans."""
        launcher = choose_launcher(settings, attempt)
        plans = [launcher.plan(with_code_published(job, settings), attempt) for job in jobs]
        launcher.check(plans)
        if self.is_dry_run:
            for plan in plans:
                self.log.info("would start %s:\n%s", plan.job.task, plan)

    def _check_jobs(self, context: Context, settings: Settings) -> list[Job]:
        """The jobs of the DAG, as far as they are known before any task has run."""
        jobs, errors = [], []
        for task in context["dag"].tasks:
            if isinstance(task, JobOperator):
                try:
                    job = _described_ahead(task, context, settings)
                    _check_models(job)
                except FinalError as error:
                    if _PENDING not in str(error):  # checked later, when the value is known
                        errors.append(f"{task.task_id}: {error}")
                else:
                    jobs.append(job)
        if errors:
            raise FinalError("\n".join(errors))
        _check_shards(jobs)
        return jobs


def _described_ahead(task: JobOperator, context: Context, settings: Settings) -> Job:
    """The job of a task that has not run, with placeholders for the outputs of other tasks."""
    env = task.get_template_env()
    job = task.render_template(_without_outputs(task.job), context, env)
    arguments = task.render_template(_without_outputs(task.arguments), context, env)
    return describe(task, job, arguments, context, settings)


def _without_outputs(value: Any) -> Any:
    if isinstance(value, XComArg):
        return _PENDING
    if isinstance(value, Mapping):
        return {key: _without_outputs(each) for key, each in value.items()}
    if isinstance(value, list | tuple):
        return [_without_outputs(each) for each in value]
    return value


def _check_models(job: Job) -> None:
    """Check that the model's module is in the code folder of a training job."""
    if job.module != "aerotrain.train" or not job.code:
        return
    name = job.arguments["model"]
    path = Path(job.code, *name.split("."))
    if not path.with_suffix(".py").exists() and not (path / "__init__.py").exists():
        there = sorted(each.stem for each in Path(job.code).glob("*.py"))
        raise FinalError(
            f"there is no module {name!r} in {job.code}; it holds {', '.join(there) or 'none'}"
        )


def _check_shards(jobs: Sequence[Job]) -> None:
    """Check that there are at least as many shards as readers: each reader reads whole shards."""
    readers = max((job.count(job.reader) for job in jobs), default=0)
    for job in jobs:
        if job.module == "aerotrain.data.prepare.plan":
            shards = PlanArguments.of(job.arguments).shards
            if shards < readers:
                raise SpecError(
                    f"{shards} shards cannot be shared by {readers} readers, for each reads "
                    f"whole shards; ask for {readers} shards or more, or for fewer workers or input"
                )
