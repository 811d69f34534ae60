"""Detects that Airflow abandoned a task try in order to run another one.

After a restart of the scheduler, Airflow abandons the tasks of the scheduler before it, although
their workers may be alive: it stops them as if a user had marked them, and queues them again. The
same happens if a worker was killed and the task's own process continues without it. In both cases
the replicas must not be ended, because the next try adopts them.
"""

import threading
from contextlib import suppress
from typing import Any

from airflow.sdk import Context

from aerotrain.contract.errors import TemporaryError

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
        self._store: Any = context["task_state_store"]
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
        """Whether another try is running: Airflow then has no entry for the id of this one."""
        return self._store.get(_KEY) is None
