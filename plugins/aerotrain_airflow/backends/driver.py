"""The driver of all backends: observes, calls the controller, and carries out its decisions."""

import time
from contextlib import suppress
from logging import getLogger

from aerotrain.contract.errors import TemporaryError
from aerotrain.contract.status import Progress, State
from aerotrain_airflow.backends.base import (
    Backend,
    Emit,
    GoneError,
    Group,
    LogLine,
    NoRoomError,
    PlanT,
    Say,
)
from aerotrain_airflow.controller.controller import Controller
from aerotrain_airflow.controller.decision import Decision, Ended, LastStep, Restart, Wait

#: Seconds until a restart is repeated that failed for lack of a resource.
ROOM_EVERY = 2.0

_LOG = getLogger(__name__)


async def start(backend: Backend[PlanT], plan: PlanT) -> str:
    """Create the group of ``plan``, or adopt that of an earlier attempt; returns its handle.

    A job has one group. An existing one is adopted if it has the same description and can still
    succeed; otherwise it is deleted first.

    Raises:
        FinalError: the plan cannot be started here, and another attempt would not help.
        TemporaryError: it may be possible to start it later.
    """
    async with backend.claim(plan) as claim:
        while True:
            found = await claim.find()
            if found is None:
                handle = await claim.create()
                if handle is not None:
                    return handle
                continue
            controller = Controller(job=plan.job, created=found.created)
            if found.matches and controller.can_adopt(found.events, found.seen, time.time()):
                if await claim.adopt(found):
                    _LOG.info("adopted %s, which an earlier try has started", found.handle)
                    return found.handle
            else:
                await claim.delete(found)


async def follow(
    backend: Backend[PlanT], handle: str, *, emit: Emit, say: Say, until: float | None
) -> Ended:
    """Follow a group until its job has ended, restarting failed replicas; returns how it ended.

    ``until`` is a time of ``time.time()`` at which the task's own timeout ends.
    """
    listener = _Listener(emit)
    try:
        async with backend.open(handle, listener.emit, say) as group:
            return await _Following(group, listener, say, until).run()
    except GoneError as error:
        return Ended(state=State.LOST, reason=str(error))


class _Listener:
    """Forwards lines, and keeps the last progress line."""

    def __init__(self, emit: Emit) -> None:
        self._emit = emit
        self.last_step: LastStep | None = None

    def emit(self, line: LogLine) -> None:
        found = Progress.parse(line.text)
        if found is not None:
            self.last_step = LastStep(found.step, time.time())
        self._emit(line)


class _Following:
    def __init__(self, group: Group, listener: _Listener, say: Say, until: float | None) -> None:
        self._group = group
        self._listener = listener
        self._say = say
        self._controller = Controller(job=group.job, created=group.created, until=until)
        self._room_after = 0.0  # a time of time.monotonic() after a NoRoomError; else 0

    async def run(self) -> Ended:
        wait, look_again = 0.0, False
        while True:
            look = await self._group.observe(wait, look_again=look_again)
            decision = self._controller.decide(
                self._group.events, look, time.time(), self._listener.last_step
            )
            if isinstance(decision.action, Ended):
                with suppress(GoneError, NoRoomError):  # the job has ended in any case
                    await self._group.append(decision.events)
                await self._group.finish(decision.action)
                return decision.action
            try:
                wait = await self._carry_out(decision)
            except TemporaryError as error:  # another process has taken a port or a name
                return Ended(state=State.LOST, reason=str(error))
            look_again = isinstance(decision.action, Wait) and decision.action.look_again

    async def _carry_out(self, decision: Decision) -> float:
        """Carry out a decision; returns how many seconds to wait unless something changes.

        If a resource is used up, such as disk space, the decision is made again later.
        """
        if time.monotonic() < self._room_after:
            return ROOM_EVERY
        try:
            if decision.events and not await self._group.append(decision.events):
                return 0.0
            match decision.action:
                case Restart():
                    self._say(str(decision.action))
                    await self._group.restart(decision.action)
                    self._room_after = 0.0
                    return 0.0
                case Wait(until):
                    return max(0.0, until - time.time())
        except NoRoomError as error:
            if not self._room_after:
                self._say(f"{error}: what was lost is restarted when there is room")
            self._room_after = time.monotonic() + ROOM_EVERY
        return ROOM_EVERY
