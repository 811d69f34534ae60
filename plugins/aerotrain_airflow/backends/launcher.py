"""What a task holds of a backend: the driver, for a thread that waits.

The work is done in a thread of its own with its own event loop: a signal may come to the waiting
thread at any time, and its handler may use the same launcher.
"""

import asyncio
import threading
from collections.abc import Callable, Coroutine, Sequence
from concurrent.futures import Future
from contextlib import suppress
from logging import getLogger
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from aerotrain.contract.errors import TemporaryError
from aerotrain.contract.event_log import Event
from aerotrain.contract.job import Job
from aerotrain_airflow.backends import driver
from aerotrain_airflow.backends.base import Backend, Emit, PlanT
from aerotrain_airflow.controller.ended import Ended
from aerotrain_airflow.controller.situation import Seen

if TYPE_CHECKING:
    from airflow.triggers.base import BaseTrigger

T = TypeVar("T")

_LOG = getLogger(__name__)


class Launcher(Generic[PlanT]):
    """Runs the replicas of jobs by a backend, on behalf of one task try."""

    def __init__(self, backend: Backend[PlanT]) -> None:
        self._backend = backend
        self._starting: _Work[str] | None = None

    def plan(self, job: Job, attempt: str) -> PlanT:
        """What ``start`` would do for this job, without touching the world.

        Raises:
            SpecError: this backend cannot run such a job.
        """
        return self._backend.plan(job, attempt)

    def check(self, plans: Sequence[PlanT]) -> None:
        """Ask the world whether ``start`` would be let do all of these, and change nothing.

        Raises:
            FinalError, TemporaryError: as for ``start``.
        """
        _Work(lambda: self._backend.check(plans)).result()

    def start(self, plan: PlanT) -> str:
        """Start every replica of the plan, or adopt the job's group; its handle.

        Raises:
            FinalError: the plan cannot be started here, and another try would not help.
            TemporaryError: it may be startable later, or ``stop`` was called meanwhile.
        """
        self._starting = starting = _Work(lambda: driver.start(self._backend, plan))
        try:
            return starting.result()
        except asyncio.CancelledError:
            raise TemporaryError(f"{plan.job.name} was ended while it started") from None
        finally:
            self._starting = None

    def watch(
        self, handle: str, emit: Emit, *, until: float | None, at_most: float | None = None
    ) -> Ended | None:
        """Pass on every line that the replicas write, once, until their job has ended.

        What is lost meanwhile is restarted as the controller decides. ``until`` is a time of
        ``time.time()`` at which the job is to have ended. ``at_most`` is for how many seconds
        the caller watches; None is returned where the job goes on.
        """

        async def follow() -> Ended | None:
            try:
                async with asyncio.timeout(at_most):
                    return await driver.follow(
                        self._backend, handle, emit=emit, say=_LOG.info, until=until
                    )
            except TimeoutError:
                return None

        return _Work(follow).result()

    def observe(self, handle: str, emit: Emit = lambda line: None) -> Seen:
        """What is seen now of every replica; its new lines go to ``emit``.

        Raises:
            GoneError: the group is not there.
        """

        async def observe() -> Seen:
            async with self._backend.open(handle, emit, _LOG.info) as group:
                return (await group.observe(0.0)).seen

        return _Work(observe).result()

    def trigger(self, handle: str, until: float | None) -> "BaseTrigger | None":
        """What goes on watching in a triggerer, where the group can be seen from there."""
        return self._backend.trigger(handle, until)

    def ledger(self, handle: str) -> list[Event]:
        """What happened to the group until now; nothing where it is gone."""
        return _Work(lambda: self._backend.events(handle)).result()

    def stop(self, handle: str) -> None:
        """End every replica of the group and what they started, and leave nothing behind.

        Stopping what is gone already, or what another try has adopted, does nothing.
        """
        if self._starting is not None:
            self._starting.cancel()
        _Work(lambda: self._backend.delete(handle)).result()


class _Work(Generic[T]):
    """A coroutine at work in a thread of its own."""

    def __init__(self, work: Callable[[], Coroutine[Any, Any, T]]) -> None:
        self._work = work
        self._done: Future[T] = Future()
        self._task: asyncio.Task[T] | None = None
        self._begun = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def result(self) -> T:
        """Wait for it. What a signal's handler raises here ends the work, and is raised then."""
        try:
            return self._done.result()
        except BaseException:
            self.cancel()
            raise

    def cancel(self) -> None:
        """End the work, and wait until it has tidied up."""
        self._begun.wait()
        if self._task is not None and not self._done.done():
            with suppress(RuntimeError):  # its loop was closed at this moment
                self._task.get_loop().call_soon_threadsafe(self._task.cancel)
        self._thread.join()

    def _run(self) -> None:
        async def main() -> T:
            self._task = asyncio.ensure_future(self._work())
            self._begun.set()
            return await self._task

        try:
            result = asyncio.run(main())
        except BaseException as error:  # noqa: BLE001 -- it is raised where it is waited for
            self._begun.set()
            self._done.set_exception(error)
        else:
            self._done.set_result(result)
