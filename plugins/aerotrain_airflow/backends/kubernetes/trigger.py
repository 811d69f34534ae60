"""What follows a set while its task is deferred and holds no slot."""

import asyncio
import time
import traceback
from collections.abc import AsyncIterator
from typing import Any

from airflow.triggers.base import BaseTrigger, TriggerEvent

from aerotrain.contract.errors import AerotrainError
from aerotrain.contract.status import State
from aerotrain_airflow.backends.base import log_line
from aerotrain_airflow.backends.driver import follow
from aerotrain_airflow.backends.kubernetes.backend import KubernetesBackend
from aerotrain_airflow.backends.kubernetes.plan import PodSettings
from aerotrain_airflow.controller.ended import Ended

#: Seconds that the API may be away when a trigger begins; later it may be away for as long as
#: the job's deadline.
_PATIENCE = 600.0

#: Seconds for the end of a killed task's set, of the 30 that Airflow gives it.
_LAST_PATIENCE = 20.0

#: Seconds from a trigger's beginning to its event, at least. Where a task resumes before the
#: scheduler has read that it had deferred, Airflow 3.3 takes that for the end of the resumed
#: one, and fails it: https://github.com/apache/airflow/issues/72716
FIRE_AFTER = 10.0


class JobTrigger(BaseTrigger):
    """Follow the set at ``address``, its lines in the task's log, and fire once it has ended.

    Airflow may run it in two triggerers at once or start it anew at any time: it keeps nothing.
    ``holder`` is the task try whose set it is; ``until`` is a time of ``time.time()`` at which
    the task's own timeout ends, which Airflow does not watch while a task is deferred.
    """

    def __init__(self, address: str, conn_id: str, holder: str, until: float | None = None) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.address = address
        self.conn_id = conn_id
        self.holder = holder
        self.until = until

    def serialize(self) -> tuple[str, dict[str, Any]]:
        arguments = {
            "address": self.address,
            "conn_id": self.conn_id,
            "holder": self.holder,
            "until": self.until,
        }
        return f"{type(self).__module__}.{type(self).__qualname__}", arguments

    async def run(self) -> AsyncIterator[TriggerEvent]:
        began = time.monotonic()
        try:
            ended = await self._follow()
        except AerotrainError as error:
            ended = Ended(state=State.LOST, reason=f"its pods could not be followed: {error}")
        except Exception as error:  # noqa: BLE001 -- without an event nobody would end the set
            reason = "".join(traceback.format_exception(error))
            ended = Ended(state=State.LOST, reason=f"its pods could not be followed: {reason}")
        await asyncio.sleep(began + FIRE_AFTER - time.monotonic())
        event = {"address": self.address, "ended": ended.to_dict()}
        yield TriggerEvent(event)  # type: ignore[no-untyped-call]

    async def _follow(self) -> Ended:
        return await follow(
            self._backend(_PATIENCE),
            self.address,
            emit=lambda line: log_line(self.log, line),
            say=self.log.info,
            until=self.until,
        )

    async def on_kill(self) -> None:
        """End the set: the task was marked or cleared by a person, or its run timed out."""
        await self._backend(_LAST_PATIENCE).delete(self.address)

    def _backend(self, patience: float) -> KubernetesBackend:
        nothing_new = PodSettings(image="")  # what is there is followed and ended
        return KubernetesBackend(nothing_new, self.conn_id, self.holder, patience)
