"""The one operator: it runs a job, whatever the job does, through a launcher."""

import os
import re
import time
from collections.abc import Mapping
from contextlib import suppress
from logging import DEBUG, INFO
from pathlib import Path
from typing import Any, ClassVar

from airflow.sdk import BaseOperator, Context
from airflow.sdk.exceptions import AirflowException, AirflowFailException

from aerotrain.contract.errors import FinalError, SpecError, TemporaryError
from aerotrain.contract.job import Job
from aerotrain.contract.names import job_name, path_segment
from aerotrain.contract.status import Result, State, job_state
from aerotrain.contract.steps import ARGUMENTS
from aerotrain.contract.strategy import nearest
from aerotrain.store import MissingError, open_store
from aerotrain_airflow.credentials import replica_base_environment, store_environment
from aerotrain_airflow.launchers.base import Launcher, Positions
from aerotrain_airflow.launchers.process import ProcessLauncher
from aerotrain_airflow.settings import Settings

#: Seconds between two looks at the replicas: short beside a step's import of TensorFlow,
#: long beside the look itself (about 1 ms a replica).
LOOK_EVERY = 0.2

#: What every TensorFlow says at its start, twice, whatever its log level: no news to anybody.
_BANNER = re.compile(r"All log messages before absl::InitializeLog|oneDNN custom operations are on")


class JobOperator(BaseOperator):
    """Run one job to its end, its replicas' lines in this task's log, and hand on its result.

    Args:
        job: the job's description as plain values (``aerotrain.contract.job.Job``), all but
            its name, store, run and task, which come from the task instance. Templated; a
            value may also be ``dag.param("name")`` or another task's output.
        arguments: more of the job's arguments, for ``expand``. Templated.
        return_key: where the job's result is an object, the key whose value this task returns
            (``expand`` maps over nothing else); its other keys become XComs of their own.

    Raises:
        AirflowFailException: the job failed for good, and another try would fail the same way.
        AirflowException: the job was lost; Airflow's retries may try it again.
    """

    template_fields = ("job", "arguments")
    template_fields_renderers: ClassVar[dict[str, str]] = {"job": "json", "arguments": "json"}
    ui_color = "#e8f4ea"

    def __init__(
        self,
        *,
        job: dict[str, Any],
        arguments: dict[str, Any] | None = None,
        return_key: str | None = None,
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        self.job = job
        self.arguments = arguments or {}
        self.return_key = return_key
        self._launcher: Launcher[Any] | None = None
        self._address: str | None = None
        self._killed = False

    def execute(self, context: Context) -> Any:
        """Run the job; what its chief returned is this task's result."""
        try:
            settings = Settings.read()
            refuse_unknown_conf(context)
            job = describe(self, self.job, self.arguments, context, settings)
            value = self._run(job, context, settings)
        except FinalError as error:
            raise AirflowFailException(str(error)) from error
        except TemporaryError as error:
            raise AirflowException(str(error)) from error
        finally:
            self._stop()
        if self.return_key is None:
            return value
        returned = value.pop(self.return_key)
        for key, each in value.items():
            context["ti"].xcom_push(key, each)
        return returned

    def _run(self, job: Job, context: Context, settings: Settings) -> Any:
        attempt = f"{context['ti'].id}"
        self._launcher = ProcessLauncher(
            settings.scratch, replica_base_environment(settings), settings.python
        )
        plan = self._launcher.plan(job, attempt)
        if self._killed:
            raise TemporaryError(f"{job.name} was ended before it started")
        self.log.info("starting %s", plan)
        self._address = self._launcher.start(plan)
        self._watch(job, self._launcher, self._address)
        return _result(job, attempt, settings)

    def _watch(self, job: Job, launcher: Launcher[Any], address: str) -> None:
        """Pass the replicas' lines on until the job has ended.

        Raises:
            FinalError: a replica failed for good.
            TemporaryError: a replica was lost, or the job outlived its deadline.
        """
        positions: Positions = {}
        deadline = time.monotonic() + job.deadlines.run
        while True:
            seen = launcher.observe(address)  # before the logs: what ended has all its lines there
            for line in launcher.logs(address, positions):
                self.log.log(DEBUG if _BANNER.search(line.text) else INFO, "%s", line)
            if self._killed:
                raise TemporaryError(f"{job.name} was ended from outside")
            state = job_state(seen)
            if state.ended:
                break
            if time.monotonic() > deadline:
                raise TemporaryError(
                    f"{job.name} ran for longer than its deadline of {job.deadlines.run:.0f} s; "
                    "allow it more, or give it more replicas"
                )
            time.sleep(LOOK_EVERY)
        if state is not State.SUCCEEDED:
            # A failure before a loss: the peers of a replica that failed are lost to it.
            causes = [each for each in seen.items() if each[1].state is state]
            message = "; ".join(f"{name} {cause.reason}" for name, cause in causes)
            raise (FinalError if state is State.FAILED else TemporaryError)(message)

    def on_kill(self) -> None:
        """End every replica: the task was killed, marked, cleared, or timed out."""
        self._killed = True
        self._stop()

    def _stop(self) -> None:
        if self._launcher is not None and self._address is not None:
            self._launcher.stop(self._address)


def describe(
    task: BaseOperator,
    job: Mapping[str, Any],
    arguments: Mapping[str, Any],
    context: Context,
    settings: Settings,
) -> Job:
    """The job of this task instance, checked in whole.

    Raises:
        SpecError: it cannot run; the message says why.
    """
    ti = context["ti"]
    segment = path_segment(task.task_id)
    if ti.map_index is not None and ti.map_index >= 0:
        segment = f"{segment}/{ti.map_index}"
    described = Job.from_dict(
        {
            "code": _models_folder(task),
            **job,
            "name": job_name(ti.dag_id, ti.run_id, task.task_id, ti.map_index or 0),
            "store": f"{settings.store}/{path_segment(ti.dag_id)}",
            "run": path_segment(ti.run_id),
            "task": segment,
            "arguments": {**job.get("arguments", {}), **arguments},
        }
    )
    checked = ARGUMENTS.get(described.module)
    if checked is not None:
        checked.of(described.arguments)
    return described


def refuse_unknown_conf(context: Context) -> None:
    """Refuse a run whose conf names what is no param; Airflow itself would ignore it.

    Raises:
        SpecError: a key has no param; the message holds the nearest that exists.
    """
    params = list(context["dag"].params)  # context["params"] has whatever the conf added
    for key in context["dag_run"].conf or {}:
        if key not in params:
            raise SpecError(
                f"the run's conf names {key!r}, which is no param of this DAG"
                f"{nearest(key, params)}; its params are {', '.join(params)}"
            )


def _models_folder(task: BaseOperator) -> str | None:
    """The folder ``models`` beside the DAG's file, where users keep their modules."""
    dag = task.get_dag()
    folder = Path(dag.fileloc).parent / "models" if dag else None
    return str(folder) if folder is not None and folder.is_dir() else None


def _result(job: Job, attempt: str, settings: Settings) -> Any:
    # The credential is asked for anew: a long job may have outlived the one it began with.
    store = open_store(job.prefix, {**os.environ, **store_environment(settings)})
    with suppress(MissingError):
        result = Result.from_json(store.get("result.json"))
        if result.attempt == attempt:
            return result.value
    raise TemporaryError(
        f"{job.name} ended well but left no result at {job.result_url}; was it deleted?"
    )
