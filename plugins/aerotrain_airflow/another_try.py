"""How a task ends that Airflow itself tries again: what it runs is left to the next try.

A scheduler that comes back gives up the tasks of the one before, although their workers may
live: they are told to go exactly as if a person had marked them, and are queued again. What such
a task runs is for its next try to take over, and not to be ended. So it is where a worker was
killed, and the task's own process goes on without it.
"""

import threading
from contextlib import suppress
from typing import Any

from aerotrain.contract.errors import TemporaryError

#: The states of a task instance that waits for its next try. One that a person has marked is
#: failed, succeeded or skipped, and one that was cleared is restarting, until it has gone.
_WAITS = (None, "scheduled", "queued", "up_for_retry")

#: Seconds for the answer: the task has 5 to go, and ending its replicas takes half of them.
_SECONDS = 2.0


class UnheardError(TemporaryError):
    """What this task says reaches nobody, because the worker that ran it was killed."""


def is_tried_again(ti: Any) -> bool:
    """Ask what has become of the task instance; without an answer, it is not tried again.

    By another thread: this one was interrupted by a signal, and may hold the lock of the line.
    """
    answers: list[str | None] = []

    def ask() -> None:
        with suppress(Exception):  # whatever it is, there is no answer
            states = ti.get_task_states(
                dag_id=ti.dag_id, task_ids=[ti.task_id], run_ids=[ti.run_id]
            )
            is_mapped = ti.map_index is not None and ti.map_index >= 0
            name = f"{ti.task_id}_{ti.map_index}" if is_mapped else ti.task_id
            answers.append(states[ti.run_id][name])

    asking = threading.Thread(target=ask, daemon=True)
    asking.start()
    asking.join(_SECONDS)
    return any(each in _WAITS for each in answers)
