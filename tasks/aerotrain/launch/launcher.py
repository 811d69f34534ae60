"""The synchronous interface of a backend and its driver, for a task's thread.

The work runs in a separate thread with its own event loop: a signal may interrupt the waiting
thread at any time, and its handler may use the same launcher.
"""

import asyncio
import threading
from collections.abc import Callable, Coroutine, Sequence
from concurrent.futures import Future
from contextlib import suppress
from logging import getLogger
from typing import Any, Generic, TypeVar

from aerotrain.contract.errors import TemporaryError
from aerotrain.contract.event_log import Event
from aerotrain.contract.job import Job
from aerotrain.launch import driver
from aerotrain.launch.backend import Backend, Emit, PlanT, Record, Report
from aerotrain.launch.decision import Ended
from aerotrain.launch.restart_policy import Observations
from aerotrain.launch.wanted import Open

T = TypeVar("T")

_LOG = getLogger(__name__)


class Launcher(Generic[PlanT]):
    """Runs the replicas of jobs by a backend, on behalf of one task try.

    ``say`` gets messages about a group, such as that a replica is restarted. ``open_store`` opens
    the store of a job, where the user may set its size.
    """

    def __init__(
        self,
        backend: Backend[PlanT],
        say: Report = _LOG.info,
        open_store: Open | None = None,
    ) -> None:
        self._backend = backend
        self._say = say
        self._open_store = open_store
        self._starting: _Work[str] | None = None

    def plan(self, job: Job, attempt: str) -> PlanT:
        """What ``start`` would do for this job; no side effects.

        Raises:
            SpecError: this backend cannot run such a job.
        """
        return self._backend.plan(job, attempt)

    def check(self, plans: Sequence[PlanT]) -> None:
        """Check that ``start`` would work for all of these, without changing anything.

        Raises:
            FinalError, TemporaryError: as for ``start``.
        """
        _Work(lambda: self._backend.check(plans)).result()

    def start(self, plan: PlanT) -> str:
        """Start every replica of the plan, or adopt the job's group; returns its handle.

        Raises:
            FinalError: the plan cannot be started here, and another attempt would not help.
            TemporaryError: it may be possible later, or ``stop`` was called meanwhile.
        """
        self._starting = starting = _Work(lambda: driver.start(self._backend, plan))
        try:
            return starting.result()
        except asyncio.CancelledError:
            raise TemporaryError(f"{plan.job.name} was ended while it started") from None
        finally:
            self._starting = None

    def watch(
        self,
        handle: str,
        emit: Emit,
        *,
        until: float | None,
        at_most: float | None = None,
        record: Record = lambda _: None,
    ) -> Ended | None:
        """Emit every line that the replicas write, once, until their job has ended.

        Failed replicas are restarted as the controller decides. ``until`` is a time of
        ``time.time()`` at which the job must have ended. ``at_most`` limits the watching, in
        seconds; None is returned if the job is still running then. ``record`` is as of the driver.
        """

        async def follow() -> Ended | None:
            try:
                async with asyncio.timeout(at_most):
                    return await driver.follow(
                        self._backend,
                        handle,
                        emit=emit,
                        say=self._say,
                        until=until,
                        open_store=self._open_store,
                        record=record,
                    )
            except TimeoutError:
                return None

        return _Work(follow).result()

    def observe(self, handle: str, emit: Emit = lambda line: None) -> Observations:
        """The current observation of every replica; its new lines go to ``emit``.

        Raises:
            GroupGoneError: the group does not exist.
        """

        async def observe() -> Observations:
            async with self._backend.open(handle, emit, self._say) as group:
                return (await group.observe(0.0)).seen

        return _Work(observe).result()

    def events(self, handle: str) -> list[Event]:
        """The event log of the group; empty if it no longer exists."""
        return _Work(lambda: self._backend.events(handle)).result()

    def stop(self, handle: str) -> None:
        """End every replica of the group and the processes they started, and remove all traces.

        Does nothing if the group no longer exists, or if another try has adopted it.
        """
        if self._starting is not None:
            self._starting.cancel()
        _Work(lambda: self._backend.delete(handle)).result()


class _Work(Generic[T]):
    """A coroutine that runs in a thread of its own."""

    def __init__(self, work: Callable[[], Coroutine[Any, Any, T]]) -> None:
        self._work = work
        self._done: Future[T] = Future()
        self._task: asyncio.Task[T] | None = None
        self._begun = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def result(self) -> T:
        """Wait for the result. An exception of a signal handler cancels the work and is raised."""
        try:
            return self._done.result()
        except BaseException:  # of a signal handler, while this waits
            self.cancel()
            raise

    def cancel(self) -> None:
        """Cancel the work, and wait until its cleanup is done."""
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
