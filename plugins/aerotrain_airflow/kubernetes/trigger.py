"""The trigger that follows a group while its task is deferred and occupies no slot."""

import asyncio
import time
import traceback
from collections.abc import AsyncIterator, Coroutine
from typing import Any

from airflow.triggers.base import BaseTrigger, TriggerEvent

from aerotrain.contract.errors import AerotrainError
from aerotrain.contract.status import State
from aerotrain.launch.backend import LogLine, log_line
from aerotrain.launch.decision import Ended
from aerotrain.launch.driver import follow
from aerotrain.store import Store
from aerotrain_airflow.goodput import JobMetrics
from aerotrain_airflow.kubernetes.backend import KubernetesBackend
from aerotrain_airflow.kubernetes.identity import Handle
from aerotrain_airflow.kubernetes.plan import PodSettings
from aerotrain_airflow.settings import Settings
from aerotrain_airflow.versions import stats_of

#: Seconds for which requests to end pods are retried; Airflow allows 30 to end a killed task.
_RETRY_END_FOR = 20.0

#: The least number of seconds from a trigger's start to its event. If a task resumes before the
#: scheduler has read its deferral, Airflow 3.3 takes that for the end of the resumed task, and
#: fails it: https://github.com/apache/airflow/issues/72716
FIRE_AFTER = 10.0

#: Deletions that continue after the ends of their triggers: a loop keeps no tasks alive.
_ending: set[asyncio.Task[None]] = set()


def _open_store(url: str) -> Store:
    # Imported on use, as the layers of operators are above this one.
    from aerotrain_airflow.operators.credentials import store_of

    return store_of(url, Settings.read())


def _continue(deletion: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
    ending = asyncio.create_task(deletion)
    _ending.add(ending)
    ending.add_done_callback(_ending.discard)
    return ending


class JobTrigger(BaseTrigger):
    """Follow a group, write its lines to the task log, and fire once it has ended.

    Airflow may run it in two triggerers at once or restart it at any time, so it has no state.
    ``holder`` is the task try that holds the group; ``until`` is a time of ``time.time()`` at which
    the task's own timeout ends, which Airflow does not watch while a task is deferred.
    """

    def __init__(
        self, *, handle: str, conn_id: str, holder: str, until: float | None = None
    ) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.handle = handle
        self.conn_id = conn_id
        self.holder = holder
        self.until = until

    def serialize(self) -> tuple[str, dict[str, Any]]:
        arguments = {
            "handle": self.handle,
            "conn_id": self.conn_id,
            "holder": self.holder,
            "until": self.until,
        }
        return f"{type(self).__module__}.{type(self).__qualname__}", arguments

    async def run(self) -> AsyncIterator[TriggerEvent]:
        began = time.monotonic()
        try:
            ended = await self._follow()
        except Exception as error:  # noqa: BLE001 -- without an event the group would not be ended
            is_ours = isinstance(error, AerotrainError)
            reason = error if is_ours else "".join(traceback.format_exception(error))
            ended = Ended(state=State.LOST, reason=f"its pods could not be followed: {reason}")
        # The task may wait for a worker's slot for minutes, and others for the room of its pods.
        _continue(self._end_pods())
        await asyncio.sleep(began + FIRE_AFTER - time.monotonic())
        event = {"handle": self.handle, "ended": ended.to_dict()}
        yield TriggerEvent(event)  # type: ignore[no-untyped-call]

    async def _end_pods(self) -> None:
        try:
            await self._backend(_RETRY_END_FOR).end_pods(self.handle)
        except AerotrainError as error:
            self.log.warning("the pods are deleted later, when the task resumes: %s", error)

    async def _follow(self) -> Ended:
        instance = self.task_instance
        metrics = None
        if instance:
            metrics = JobMetrics(stats_of("airflow"), instance.dag_id, instance.task_id)

        def emit(line: LogLine) -> None:
            log_line(self.log, line)
            if metrics is not None:
                metrics.read(line)

        return await follow(
            self._backend(),
            self.handle,
            emit=emit,
            say=self.log.info,
            until=self.until,
            open_store=_open_store,
            record=metrics.recorded if metrics is not None else lambda _: None,
        )

    async def on_kill(self) -> None:
        """End the group: a user marked or cleared the task, or its run timed out.

        Airflow 3.3 sends the cancellation again at each sync with its triggerer, about every
        second, and so cancels this method too: ``cancelling_triggers`` in its
        ``triggerer_job_runner``. The deletion continues.
        """
        await asyncio.shield(_continue(self._backend(_RETRY_END_FOR).delete(self.handle)))

    def _backend(self, retry_for: float | None = None) -> KubernetesBackend:
        # Without an image: it only follows and ends existing groups.
        settings = PodSettings(namespace=Handle.parse(self.handle).namespace, image="")
        return KubernetesBackend(settings, self.conn_id, self.holder, retry_for)
