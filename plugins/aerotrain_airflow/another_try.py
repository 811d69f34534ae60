"""How a task ends that Airflow itself tries again: what it runs is left to the next try.

A scheduler that comes back gives up the tasks of the one before, although their workers may
live: they are told to go exactly as if a person had marked them, and are queued again. What such
a task runs is for its next try to take over, and not to be ended. So it is where a worker was
killed, and the task's own process goes on without it.
"""

import threading
from contextlib import suppress
from typing import Any

from airflow.sdk import Context

from aerotrain.contract.errors import TemporaryError

#: The states of a task instance that waits for its next try. One that a person has marked is
#: failed, succeeded or skipped, and one that was cleared is restarting, until it has gone.
_WAITS = (None, "scheduled", "queued", "up_for_retry")

#: The key of the task's state store under which each try leaves its id.
_TRY = "aerotrain_try"

#: Seconds for the answer: the task has 5 to go, and ending its replicas takes half of them.
_SECONDS = 2.0


class UnheardError(TemporaryError):
    """What this task says reaches nobody, because the worker that ran it was killed."""


class ThisTry:
    """This try of the task, for as long as Airflow knows it."""

    def __init__(self, context: Context) -> None:
        self._ti: Any = context["ti"]
        self._store: Any = context["task_state_store"]
        self._store.set(_TRY, str(self._ti.id))

    def is_followed(self) -> bool:
        """Whether Airflow has given this try up by itself, for another; without an answer, not.

        It asks by another thread: this one was interrupted by a signal, and may hold the lock of
        the line.
        """
        answers: list[bool] = []

        def ask() -> None:
            with suppress(Exception):  # whatever it is, there is no answer
                state = self._state()
                answers.append(state in _WAITS or (state == "running" and self._is_forgotten()))

        asking = threading.Thread(target=ask, daemon=True)
        asking.start()
        asking.join(_SECONDS)
        return any(answers)

    def _state(self) -> str | None:
        """That of the task instance, whichever try it is at."""
        ti = self._ti
        states = ti.get_task_states(dag_id=ti.dag_id, task_ids=[ti.task_id], run_ids=[ti.run_id])
        is_mapped = ti.map_index is not None and ti.map_index >= 0
        return states[ti.run_id][f"{ti.task_id}_{ti.map_index}" if is_mapped else ti.task_id]

    def _is_forgotten(self) -> bool:
        """Whether it is another try that runs: Airflow finds nothing for the id of this one."""
        return self._store.get(_TRY) is None
