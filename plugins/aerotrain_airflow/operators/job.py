"""The operator that runs any job through a launcher."""

import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace
from typing import TYPE_CHECKING, Any, ClassVar

from airflow.providers.common.compat.sdk import AirflowSkipException
from airflow.sdk import BaseOperator, BaseOperatorLink, Context, get_current_context
from airflow.sdk.definitions.param import ParamsDict
from jinja2 import Environment

from aerotrain.contract.errors import AerotrainError, TemporaryError
from aerotrain.contract.job import Job
from aerotrain.contract.layout import JOB, RESULT
from aerotrain.contract.status import Result
from aerotrain.launch.backend import LogLine, attempt_of, log_line
from aerotrain.launch.decision import Ended
from aerotrain.launch.launcher import Launcher
from aerotrain.launch.process.backend import ProcessBackend
from aerotrain.store import MissingError, Store
from aerotrain_airflow.dates import date_required
from aerotrain_airflow.goodput import JobMetrics, record
from aerotrain_airflow.operators.credentials import replica_base_environment, store_of
from aerotrain_airflow.operators.description import (
    check_run,
    describe,
    with_code_published,
)
from aerotrain_airflow.operators.links import (
    CardLink,
    EventLogLink,
    StatisticsLink,
    with_addresses,
)
from aerotrain_airflow.operators.reuse import earlier_result, key_of, remember
from aerotrain_airflow.operators.task_try import TaskTry, WorkerGoneError, translated
from aerotrain_airflow.params import without_copies
from aerotrain_airflow.settings import Settings
from aerotrain_airflow.versions import stats_of

if TYPE_CHECKING:
    from airflow.triggers.base import BaseTrigger

#: Seconds for which a task watches its pods before it defers. Most steps other than training end
#: sooner, and a deferral costs a round trip through triggerer, scheduler and worker.
DEFER_AFTER = 10.0


class JobOperator(BaseOperator):
    """Run one job to its end, copy its replicas' output to the task log, and return its result.

    Args:
        job: the job's description as plain values (``aerotrain.contract.job.Job``), without its
            name, store, run and task, which come from the task instance. Templated; a value may
            also be ``dag.param("name")`` or another task's output.
        arguments: more arguments of the job, for ``expand``. Templated.
        return_key: where the job's result is an object, the key whose value this task returns
            (``expand`` maps over nothing else). The other keys become XComs of their own.
        skip_key: where the job's result is an object, the key of the reason to skip this task and
            later ones, if it has one.
        launcher: ``process`` or ``kubernetes``; None for the administrator's setting. Templated.
        reuse: return the result of an earlier run of this DAG, if the job is the same in all that
            its result depends on (``aerotrain_airflow.operators.reuse``). Templated.
        dry_run: show what would be started, start nothing, and skip the task. Templated.
        deferrable: let a triggerer wait for pods that run for longer than ``DEFER_AFTER``, so that
            no worker slot is occupied meanwhile. The task itself waits for local processes.

    An event of each asset in ``outlets`` has the result: as ``url`` if it is text, as ``metrics``
    if it is an object.

    Raises:
        AirflowFailException: the job failed, and another attempt would fail the same way.
        AirflowException: the job failed for a temporary reason; Airflow's retries apply.
        AirflowSkipException: it was a dry run, or the job's result has a reason to skip.
    """

    template_fields: Sequence[str] = ("job", "arguments", "launcher", "reuse", "is_dry_run")
    template_fields_renderers: ClassVar[dict[str, str]] = {"job": "json", "arguments": "json"}
    ui_color = "#e8f4ea"
    operator_extra_links: tuple[BaseOperatorLink, ...] = (
        EventLogLink(),
        StatisticsLink(),
        CardLink(),
    )

    def __init__(
        self,
        *,
        job: dict[str, Any],
        arguments: dict[str, Any] | None = None,
        return_key: str | None = None,
        skip_key: str | None = None,
        launcher: Any = None,
        reuse: Any = False,
        dry_run: Any = False,
        deferrable: bool = True,
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        self.params = without_copies(ParamsDict(self.params))
        self.job = job
        self.arguments = arguments or {}
        self.return_key = return_key
        self.skip_key = skip_key
        self.launcher = launcher
        self.reuse = reuse
        self.is_dry_run = dry_run
        self.deferrable = deferrable
        self._running: tuple[Launcher[Any], str] | None = None
        self._killed = False
        self._try: TaskTry | None = None

    def render_template_fields(
        self, context: Context, jinja_env: Environment | None = None
    ) -> None:
        """Render the fields, which Airflow does before ``execute``.

        Raises:
            AirflowFailException: a template needs a date, and the run has none.
        """
        with translated(), date_required(context):
            super().render_template_fields(context, jinja_env)

    def execute(self, context: Context) -> Any:
        """Run the job, and return the value that its chief returned."""
        with translated():
            settings = Settings.read(self.launcher)
            check_run(context)
            job = describe(self, self.job, self.arguments, context, settings)
            job = with_code_published(job, settings, context)
            key = None
            if self.reuse and not self.is_dry_run:
                key = key_of(job, settings)
                if (earlier := earlier_result(key, job, settings)) is not None:
                    self.log.info(
                        "nothing is run: data, code, parameters and packages are those of the run "
                        "%s, whose result this is; its output is in %s. To run it again, turn off "
                        "the option reuse",
                        earlier["run"],
                        earlier["prefix"],
                    )
                    context["ti"].xcom_push("reused_from", earlier["run"])
                    return self._announced(earlier["value"])
            if not self.is_dry_run:
                store_of(job.prefix, settings).put(JOB, job.record())
            handle = self._start(job, context, settings)
            until = self._timeout(context)
            trigger = self._trigger(settings, handle, context, until)
            ended = self._watch(until, DEFER_AFTER if trigger else None)
            if ended is None:
                assert trigger is not None  # watching is limited only if there is a trigger
                self._running = None
                self.defer(trigger=trigger, method_name="resume", kwargs={"reuse_key": key})
            assert ended is not None
            return self._end(job, handle, ended, settings, key)

    def resume(self, context: Context, event: dict[str, Any], reuse_key: str | None = None) -> Any:
        """Continue after ``execute`` deferred and the job has ended."""
        with translated():
            settings = Settings.read(self.launcher)
            job = describe(self, self.job, self.arguments, context, settings)
            launcher = choose_launcher(settings, _try_id(context))
            handle = event["handle"]
            self._running = (launcher, handle)
            ended = Ended.from_dict(event["ended"])
            return self._end(job, handle, ended, settings, reuse_key)

    def _start(self, job: Job, context: Context, settings: Settings) -> str:
        """Start the replicas of a job whose code is published; return the job handle."""
        launcher = choose_launcher(settings, _try_id(context))
        plan = launcher.plan(job, _try_id(context))
        if self.is_dry_run:
            self.log.info("would start\n%s", plan)
            raise AirflowSkipException("this was a dry run: nothing was started")
        if self._killed:
            raise TemporaryError(f"{job.name} was ended before it started")
        self._try = TaskTry(context)
        replicas = ", ".join(f"{each.count} {each.role}" for each in job.replicas)
        self.log.info("starting %s at %s", replicas, plan.handle)
        self._running = (launcher, plan.handle)  # set first, so that ``on_kill`` can stop it
        try:
            handle = launcher.start(plan)
        except BaseException:  # also a timeout or a signal: no replica may be left running
            self._stop()
            raise
        self._running = (launcher, handle)
        if self._killed:  # a signal handler of this thread ran during the start
            self._stop()
            raise TemporaryError(f"{job.name} was ended while it started")
        return handle

    def _watch(self, until: float | None, at_most: float | None) -> Ended | None:
        """Watch the job, and write the output of its replicas to the task log."""
        assert self._running is not None
        launcher, handle = self._running
        try:
            record = self._metrics.recorded
            return launcher.watch(handle, self._emit, until=until, at_most=at_most, record=record)
        except WorkerGoneError:
            self._running = None  # the job keeps running, and the next attempt adopts it
            raise
        except BaseException:  # as in ``_start``
            self._stop()
            raise

    @property
    def _metrics(self) -> JobMetrics:
        return JobMetrics(stats_of("airflow.sdk"), self.dag_id, self.task_id)

    def _emit(self, line: LogLine) -> None:
        self._metrics.read(line)
        try:
            log_line(self.log, line)
        except OSError as error:
            raise WorkerGoneError(f"Airflow's worker is gone: {error}") from error

    def _end(
        self, job: Job, handle: str, ended: Ended, settings: Settings, reuse_key: str | None
    ) -> Any:
        """Return the result of a job that succeeded; stop the job in any case."""
        try:
            if self._killed:
                raise TemporaryError(f"{job.name} was ended from outside")
            replace(
                ended, reason=with_addresses(ended.reason, self.dag_id, settings)
            ).raise_unless_succeeded()
            value = _result(job, attempt_of(handle), settings)
        finally:
            self._record_events(job, handle, settings)
            self._stop()
        returned = self._announced(self._split(value))
        if reuse_key is not None:
            run = get_current_context()["ti"].run_id
            remember(reuse_key, run, job, returned, settings)
        return returned

    def _announced(self, returned: Any) -> Any:
        """What the task returns, which events of its assets have too."""
        if self.outlets and returned is not None:
            result = {"metrics" if isinstance(returned, dict) else "url": returned}
            events = get_current_context()["outlet_events"]
            for asset in self.outlets:
                events[asset].extra |= result
        return returned

    def _record_events(self, job: Job, handle: str, settings: Settings) -> None:
        """Write the complete event log of the run, and log its goodput in one line."""
        if self._running is None:
            return  # the next attempt has adopted the job
        launcher, _ = self._running
        try:
            store = store_of(job.prefix, settings)
            events = launcher.events(handle)
            goodput = record(events, store, time.time(), job, settings.prices)
        except (AerotrainError, OSError) as error:
            self.log.warning("the event log of %s could not be written: %s", job.name, error)
        else:
            if goodput is not None:
                self._metrics.ended(events, goodput)
                self.log.info("%s: %s", job.name, goodput)

    def _split(self, value: Any) -> Any:
        """What the task returns of the chief's value, of which other keys become XComs."""
        if self.skip_key is not None and (reason := value.get(self.skip_key)):
            self.log.info("skipped: %s", reason)
            raise AirflowSkipException(f"skipped: {reason}")
        if self.return_key is None:
            return value
        returned = value.pop(self.return_key)
        ti = get_current_context()["ti"]
        for key, each in value.items():
            ti.xcom_push(key, each)
        return returned

    def _trigger(
        self, settings: Settings, handle: str, context: Context, until: float | None
    ) -> "BaseTrigger | None":
        """The trigger that follows the group while the task is deferred.

        None for local processes: a triggerer may run on another machine, and cannot see them.
        """
        if settings.launcher != "kubernetes" or not self.deferrable:
            return None
        from aerotrain_airflow.kubernetes.trigger import JobTrigger

        conn_id = settings.kubernetes_conn_id
        return JobTrigger(handle=handle, conn_id=conn_id, holder=_try_id(context), until=until)

    def _timeout(self, context: Context) -> float | None:
        """The end of the task's timeout; Airflow does not watch it while the task is deferred."""
        if self.execution_timeout is None:
            return None
        began = context["ti"].start_date
        return (began + self.execution_timeout).timestamp()

    def on_kill(self) -> None:
        """Stop every replica: the task was killed, marked, cleared, or timed out.

        Where Airflow itself abandoned this attempt, the replicas are left to the next one.
        """
        if self._try is not None and self._try.has_successor():
            self._running = None
            return
        self._killed = True
        self._stop()

    def get_openlineage_facets_on_complete(self, task_instance: Any) -> Any:
        """What the task has read and written, as OpenLineage's provider asks for it."""
        from aerotrain_airflow.tracking.lineage import lineage_of_job  # it needs the extra

        return lineage_of_job(self, task_instance)

    def get_openlineage_facets_on_failure(self, task_instance: Any) -> Any:
        """What the task has read."""
        from aerotrain_airflow.tracking.lineage import lineage_of_job

        return lineage_of_job(self, task_instance, failed=True)

    def _stop(self) -> None:
        if self._running is not None:
            launcher, handle = self._running
            launcher.stop(handle)


def _try_id(context: Context) -> str:
    """The id of this try of the task. It names the launch, and only its holder may end it."""
    return str(context["ti"].id)


def _result(job: Job, attempt: str, settings: Settings) -> Any:
    store = store_of(job.prefix, settings)
    with suppress(MissingError):
        result = Result.from_json(store.get(RESULT))
        if result.attempt == attempt:
            return result.value
    raise TemporaryError(
        f"the chief of {job.name} exited with 0, but its result is not at {job.result_url}: "
        "either code that it runs ended the process early, such as by os._exit(), then see its "
        "last lines; or the result was deleted"
    )


def choose_launcher(settings: Settings, holder: str) -> Launcher[Any]:
    """The launcher that the settings name; ``holder`` is the task try that will use it.

    Raises:
        FinalError: a setting that this launcher needs is missing.
    """

    def open_store(url: str) -> Store:
        return store_of(url, settings)

    if settings.launcher == "kubernetes":
        # Imported on use: the client takes a second to import.
        from aerotrain_airflow.kubernetes.backend import from_settings

        return Launcher(from_settings(settings, holder), open_store=open_store)
    return Launcher(
        ProcessBackend(
            settings.scratch,
            replica_base_environment(settings),
            holder,
            settings.python,
            warm=settings.warm_start,
        ),
        open_store=open_store,
    )
