"""The first task of a pipeline: it checks everything that can be checked before the start."""

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from airflow.providers.common.compat.sdk import DownstreamTasksSkipped
from airflow.sdk import Context, XComArg

from aerotrain.contract.errors import FinalError, TemporaryError
from aerotrain.contract.job import Job
from aerotrain.contract.layout import job_name, path_segment
from aerotrain.contract.steps import check_of
from aerotrain.store import probe
from aerotrain_airflow.dates import date_required
from aerotrain_airflow.operators.credentials import store_of
from aerotrain_airflow.operators.description import check_run, describe, with_code_published
from aerotrain_airflow.operators.job import JobOperator, choose_launcher
from aerotrain_airflow.operators.task_try import WorkerGoneError, translated
from aerotrain_airflow.params import RunParam
from aerotrain_airflow.settings import Settings

#: Placeholder for the output of another task.
_PENDING = "(another task's output)"

_PLAN, _TRAIN = "aerotrain.data.prepare.plan", "aerotrain.training.train"
_EVALUATE, _EXPORT = "aerotrain.evaluation.evaluate", "aerotrain.serving.export"


class PreflightOperator(JobOperator):
    """Check the run's conf, every job of the DAG, the store, the launcher, and the models.

    ``launcher`` and ``dry_run`` are as for ``JobOperator``. A dry run shows what each job that is
    known at this point would start, and skips all later tasks. With ``check_model``, a replica
    builds the model of each training and tries it on the first records of its data
    (``aerotrain.check``). Where that replica cannot run, the training makes the same checks when it
    starts.

    Raises:
        AirflowFailException: something cannot work; the message lists all errors.
        AirflowException: a temporary failure: the store or the cluster does not respond, or the
            disk is full.
    """

    template_fields: Sequence[str] = ("check_model", "launcher", "is_dry_run")
    operator_extra_links = ()

    def __init__(self, *, check_model: Any = True, **kwargs: Any) -> None:
        super().__init__(job={}, **kwargs)
        self.check_model = check_model

    def execute(self, context: Context) -> None:
        with translated():
            settings = Settings.read(self.launcher)
            check_run(context)
            jobs = self._check_jobs(context, settings)
            url = f"{settings.store}/{path_segment(self.dag_id)}"
            probe(store_of(url, settings))
            launcher = choose_launcher(settings, attempt := str(context["ti"].id))
            plans = [
                launcher.plan(with_code_published(job, settings, context), attempt)
                for job in jobs.values()
            ]
            launcher.check(plans)
            if self.is_dry_run:
                for plan in plans:
                    self.log.info("would start %s:\n%s", plan.job.task, plan)
            if self.check_model and not self.is_dry_run:
                self._check_trainings(jobs, context, settings)
        self.log.info("the run can start: its jobs, its store %s and its launcher are fine", url)
        if self.is_dry_run:
            # Also the tasks whose trigger rule would let them run after those that are skipped.
            later = sorted(self.get_flat_relative_ids(upstream=False))
            raise DownstreamTasksSkipped(tasks=later)  # type: ignore[no-untyped-call]

    def _check_trainings(
        self, jobs: Mapping[str, Job], context: Context, settings: Settings
    ) -> None:
        """Check the model of each training of which the source and all arguments are known."""
        ti = context["ti"]
        for task_id, job in jobs.items():
            if job.module != _TRAIN:
                continue
            known = dict(job.arguments)
            prepare: dict[str, Any] = {}
            if known["data"] == _PENDING:
                plan = jobs.get(_plan_of(context["dag"].get_task(task_id)))
                known["data"], prepare = "", dict(plan.arguments) if plan else {"of": _PENDING}
            if _PENDING in str((known, prepare)):
                self.log.info("%s: its model is checked when it starts, with %s", task_id, _PENDING)
                continue
            name = job_name(ti.dag_id, ti.run_id, f"{self.task_id}.{task_id}")
            task = f"{path_segment(self.task_id)}/{job.task}"
            try:
                check = check_of(
                    job,
                    prepare,
                    evaluations=list(_later_arguments(_EVALUATE, jobs, task_id, context)),
                    exports=list(_later_arguments(_EXPORT, jobs, task_id, context)),
                    name=name,
                    task=task,
                )
                self._run_check(check, context, settings)
            except FinalError as error:
                raise FinalError(
                    f"{error}; found by the check of the model of {task_id}"
                ) from error
            except TemporaryError as error:
                if self._killed or isinstance(error, WorkerGoneError):
                    raise
                self.log.warning(
                    "%s: its model could not be checked here, and is when training starts: %s",
                    task_id,
                    error,
                )

    def _run_check(self, job: Job, context: Context, settings: Settings) -> None:
        """Run the job to its end; raises its error."""
        self._start(with_code_published(job, settings, context), context, settings)
        try:
            ended = self._watch(self._timeout(context), None)
            assert ended is not None  # it is watched to its end
            ended.raise_unless_succeeded()
        finally:
            self._stop()
            self._running = None

    def _check_jobs(self, context: Context, settings: Settings) -> dict[str, Job]:
        """The jobs of the DAG by task, as far as they are known before any task has run."""
        jobs, errors = {}, []
        for task in context["dag"].tasks:
            if isinstance(task, JobOperator) and not isinstance(task, PreflightOperator):
                try:
                    job = _described_ahead(task, context, settings)
                    _check_models(job)
                except FinalError as error:
                    if _PENDING not in str(error):  # checked later, when the value is known
                        errors.append(f"{task.task_id}: {error}")
                else:
                    jobs[task.task_id] = job
        if errors:
            raise FinalError("\n".join(errors))
        return jobs


def _plan_of(training: Any) -> str:
    """The id of the task that plans the data set of a training; empty if another one gives it."""
    value: Any = training.job["arguments"].get("data")
    while isinstance(value, XComArg):
        task: Any = getattr(value, "operator", None)
        if not isinstance(task, JobOperator):
            return ""
        if task.job["module"] == _PLAN:
            return str(task.task_id)
        value = task.job["arguments"].get("output")
    return ""


def _later_arguments(
    module: str, jobs: Mapping[str, Job], training: str, context: Context
) -> Iterator[Mapping[str, Any]]:
    """The arguments of the later tasks of a module that take the training's model."""
    for task_id, job in jobs.items():
        if job.module == module:
            task: Any = context["dag"].get_task(task_id)
            model = getattr(task.job["arguments"].get("model"), "operator", None)  # of an XComArg
            if model is not None and model.task_id == training:
                yield job.arguments


def _described_ahead(task: JobOperator, context: Context, settings: Settings) -> Job:
    """The job of a task that has not run, with placeholders for the outputs of other tasks."""
    env = task.get_template_env()
    with date_required(context):
        job = task.render_template(_without_outputs(task.job), context, env)
        arguments = task.render_template(_without_outputs(task.arguments), context, env)
    return describe(task, job, arguments, context, settings)


def _without_outputs(value: Any) -> Any:
    # An output, or an argument of a mapped group; a param of the run is known.
    if hasattr(value, "resolve") and not isinstance(value, RunParam):
        return _PENDING
    if isinstance(value, Mapping):
        return {key: _without_outputs(each) for key, each in value.items()}
    if isinstance(value, list | tuple):
        return [_without_outputs(each) for each in value]
    return value


def _check_models(job: Job) -> None:
    """Check that the model's module is in the code folder of a training job."""
    if job.module != _TRAIN or not job.code:
        return
    name = job.arguments["model"]
    path = Path(job.code, *name.split("."))
    if not path.with_suffix(".py").exists() and not (path / "__init__.py").exists():
        there = sorted(each.stem for each in Path(job.code).glob("*.py"))
        raise FinalError(
            f"there is no module {name!r} in {job.code}; it holds {', '.join(there) or 'none'}"
        )
