"""The end of a task try: the two kinds of failure, and a try that Airflow has abandoned.

Errors become Airflow's exceptions, which end a task's log with one sentence.

After a restart of the scheduler, Airflow abandons the tasks of the scheduler before it, although
their workers may be alive: it stops them as if a user had marked them, and queues them again. The
same happens if a worker was killed and the task's own process continues without it. In both cases
the replicas must not be ended, because the next try adopts them.
"""

import sys
import threading
from collections.abc import Iterator, MutableMapping
from contextlib import contextmanager, suppress
from typing import Any

import structlog
from airflow.providers.common.compat.sdk import AirflowException, AirflowFailException
from airflow.sdk import Context, get_current_context

from aerotrain.contract.errors import FinalError, TemporaryError

#: The states of a task instance that waits for its next try. One that a user has marked is failed,
#: succeeded or skipped; one that was cleared is restarting until its process has ended.
_WAITING = (None, "scheduled", "queued", "up_for_retry")

#: The key in the task's state store under which each try stores its id.
_KEY = "aerotrain_try"

#: Seconds to wait for the answer: the task has 5 s to exit, and stopping replicas takes half.
_SECONDS = 2.0


class WorkerGoneError(TemporaryError):
    """This task cannot write to its log, because Airflow's worker was killed."""


class TaskTry:
    """This try of the task."""

    def __init__(self, context: Context) -> None:
        self._ti: Any = context["ti"]
        #: None before Airflow 3.3.
        self._store: Any = context.get("task_state_store")
        if self._store is not None:
            self._store.set(_KEY, str(self._ti.id))

    def has_successor(self) -> bool:
        """Whether Airflow has abandoned this try for another one; False if there is no answer.

        The request runs in another thread: a signal interrupted this one, which may hold the lock
        of the connection.
        """
        answers: list[bool] = []

        def ask() -> None:
            with suppress(Exception):  # any error means that there is no answer
                state = self._state()
                answers.append(state in _WAITING or (state == "running" and self._is_replaced()))

        asking = threading.Thread(target=ask, daemon=True)
        asking.start()
        asking.join(_SECONDS)
        return any(answers)

    def _state(self) -> str | None:
        """The state of the task instance, whichever try is current."""
        ti = self._ti
        states = ti.get_task_states(dag_id=ti.dag_id, task_ids=[ti.task_id], run_ids=[ti.run_id])
        is_mapped = ti.map_index is not None and ti.map_index >= 0
        return states[ti.run_id][f"{ti.task_id}_{ti.map_index}" if is_mapped else ti.task_id]

    def _is_replaced(self) -> bool:
        """Whether another try is running: Airflow then has no entry for the id of this one.

        Without a store that is unknown. Replicas that the other try has adopted are not ended then
        either, for this try no longer holds them.
        """
        return self._store is not None and self._store.get(_KEY) is None


#: The XCom of a task with the reason of its failure, which Airflow itself has in the log only.
FAILURE = "failure"

#: Writes a line for each use of an AWS connection, and there are several in a task.
_TALKATIVE = "airflow.providers.amazon.aws.utils.connection_wrapper"


class JobFailedError(AirflowFailException):
    """A retry would fail the same way, so Airflow makes none."""


class JobInterruptedError(AirflowException):
    """It failed for a temporary reason; Airflow's retries apply."""


@contextmanager
def translated() -> Iterator[None]:
    """Raise Airflow's exceptions for the two kinds of error of this project.

    The task's log shows them without a traceback: the message says what happened and what to do.
    """
    processors = structlog.get_config()["processors"]
    if _without_noise not in processors:
        processors.insert(0, _without_noise)  # in place: the task's loggers have this very list
    try:
        yield
    except (FinalError, TemporaryError) as error:
        with suppress(Exception):  # Airflow is away, or no task is running: the log has it
            get_current_context()["ti"].xcom_push(FAILURE, str(error))
        kind = JobFailedError if isinstance(error, FinalError) else JobInterruptedError
        raise kind(str(error)) from None


def _without_noise(
    logger: Any, method: str, event: MutableMapping[str, Any]
) -> MutableMapping[str, Any]:
    """Drop lines about AWS connections; make an expected failure one sentence without traceback.

    A processor of structlog: https://www.structlog.org/en/stable/processors.html
    """
    if method == "info" and str(getattr(logger, "name", "")).startswith(_TALKATIVE):
        raise structlog.DropEvent
    error = sys.exc_info()[1]
    if event.get("exc_info") and isinstance(error, JobFailedError | JobInterruptedError):
        del event["exc_info"]
        event["event"] = str(error)
    return event
