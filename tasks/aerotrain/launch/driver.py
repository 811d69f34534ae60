"""The driver of all backends: observes, calls the controller, and carries out its decisions.

``Listener`` decides what of the replicas' output reaches the task's log, and how often.
"""

import asyncio
import re
import time
from contextlib import suppress
from dataclasses import replace
from itertools import chain
from logging import getLogger

from aerotrain.contract.errors import ERROR_PREFIX, AerotrainError, FinalError
from aerotrain.contract.event_log import EventType
from aerotrain.contract.replicas import ReplicaName
from aerotrain.contract.status import Progress, State
from aerotrain.launch.backend import (
    Backend,
    Emit,
    Group,
    GroupGoneError,
    LogLine,
    PlanT,
    Record,
    Report,
    RetryLaterError,
)
from aerotrain.launch.controller import Controller
from aerotrain.launch.decision import Decision, Ended, LastStep, Restart, Wait
from aerotrain.launch.wanted import Open, Wanted, watched

#: What TensorFlow's C++ prints whatever its log level: a banner, and all that is of level INFO.
_NOISE = re.compile(
    r"^I\d{4} \d\d:|All log messages before absl::InitializeLog|oneDNN custom operations are on"
)

#: The server of a worker or ps prints its options like this, and an empty line at the end.
_DUMP = re.compile(r"^I\d{4} .* SessionOptions: ")
_OF_DUMP = re.compile(r"\s*(\w+ \{|\}|\w+: \S+)?\s*")


class Listener:
    """Forwards lines, and keeps the last progress line.

    The error that ends a replica is its last line, and part of the message of its restart or of the
    job's end. Such a line is held back until the replica says more, and left out if the message has
    it, so that the log has each error once.
    """

    def __init__(self, emit: Emit) -> None:
        self._emit = emit
        self._held: dict[ReplicaName, list[LogLine]] = {}
        self._reported = ""
        self._dumping: set[ReplicaName] = set()
        self.last_step: LastStep | None = None

    def emit(self, line: LogLine) -> None:
        found = Progress.parse(line.text)
        if found is not None:
            self.last_step = LastStep(found.step, time.time())
        if line.text.startswith(ERROR_PREFIX):
            self._held.setdefault(line.replica, []).append(line)
            return
        if line.replica in self._held:
            self.release()
        self._emit(replace(line, is_noise=self._is_noise(line)))

    def _is_noise(self, line: LogLine) -> bool:
        if _DUMP.search(line.text):
            self._dumping.add(line.replica)
        elif line.replica in self._dumping and _OF_DUMP.fullmatch(line.text):
            if not line.text.strip():
                self._dumping.remove(line.replica)
            return True
        return _NOISE.search(line.text) is not None

    def reported(self, message: str) -> None:
        """Take note of a message of the driver, which may have errors that are held back."""
        self._reported = message
        self.release()

    def release(self) -> None:
        """Forward the errors that are held back, except those that the last message has."""
        held, self._held = self._held, {}
        for line in chain.from_iterable(held.values()):
            if line.text.removeprefix(ERROR_PREFIX) not in self._reported:
                self._emit(line)


#: Seconds until the next decision after one that could not be carried out.
AGAIN_AFTER = 2.0

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
    backend: Backend[PlanT],
    handle: str,
    *,
    emit: Emit,
    say: Report,
    until: float | None,
    open_store: Open | None = None,
    record: Record = lambda _: None,
) -> Ended:
    """Follow a group until its job has ended, restarting failed replicas; returns how it ended.

    ``until`` is a time of ``time.time()`` at which the task's own timeout ends. ``open_store``
    opens the job's store, where the user may set its size. ``record`` gets the events of each
    decision but the end, once across all followers.
    """
    listener, is_said = Listener(emit), False
    while True:
        try:
            async with backend.open(handle, listener.emit, say) as group:
                with watched(group.job, open_store) as wanted:
                    return await _Following(group, listener, say, until, wanted, record).run()
        except GroupGoneError as error:
            return Ended(state=State.LOST, reason=str(error))
        except RetryLaterError as error:  # the group cannot be read
            if until is not None and time.time() > until:
                raise
            if not is_said:
                say(f"{error}: the job is followed once that is possible again")
            is_said = True
        finally:
            listener.release()
        await asyncio.sleep(AGAIN_AFTER)


class _Following:
    def __init__(
        self,
        group: Group,
        listener: Listener,
        say: Report,
        until: float | None,
        wanted: Wanted,
        record: Record,
    ) -> None:
        self._group = group
        self._record = record
        self._wanted = wanted
        self._listener = listener
        self._say = say
        self._controller = Controller(job=group.job, created=group.created, until=until)
        self._not_before = 0.0  # a time of time.monotonic() after a RetryLaterError; else 0
        self._said = ""  # the last restart, which is repeated until it is possible

    async def run(self) -> Ended:
        wait, look_again = 0.0, False
        while True:
            self._wanted.events = self._group.events
            until_read = min(wait, self._wanted.every)
            look = await self._group.observe(until_read, look_again=look_again)
            decision = self._controller.decide(
                self._group.events,
                look,
                time.time(),
                self._listener.last_step,
                self._wanted.size,
                self._wanted.times,
            )
            if isinstance(decision.action, Ended):
                if await self._record_end(decision):
                    await self._group.finish(decision.action)
                    self._listener.reported(decision.action.reason)
                    return decision.action
                wait, look_again = 0.0, False
                continue
            try:
                wait = await self._carry_out(decision)
            except AerotrainError as error:  # such as a name that was taken, or a lost permission
                is_final = isinstance(error, FinalError)
                return Ended(state=State.FAILED if is_final else State.LOST, reason=str(error))
            look_again = isinstance(decision.action, Wait) and decision.action.look_again

    async def _record_end(self, decision: Decision) -> bool:
        """Record the end; False if another process was first, so that the end may be another."""
        with suppress(GroupGoneError, RetryLaterError):  # the job has ended in any case
            return await self._group.append(decision.events)
        return True

    async def _carry_out(self, decision: Decision) -> float:
        """Carry out a decision; returns how many seconds to wait unless something changes.

        If that is not possible now, the decision is made again later.
        """
        if time.monotonic() < self._not_before:
            return AGAIN_AFTER
        try:
            if decision.events and not await self._group.append(decision.events):
                return 0.0
            self._record(decision.events)
            match decision.action:
                case Restart():
                    if self._said != str(decision.action):
                        self._said = str(decision.action)
                        self._say(self._said)
                        self._listener.reported(self._said)
                    await self._group.restart(decision.action)
                    self._not_before = 0.0
                    return 0.0
                case Wait(until):
                    for each in decision.events:
                        if each.event is EventType.STRAGGLER:
                            self._say(each.because)
                    return max(0.0, until - time.time())
        except RetryLaterError as error:
            if not self._not_before:
                self._say(f"{error}: failed replicas are restarted once that is possible again")
            self._not_before = time.monotonic() + AGAIN_AFTER
        return AGAIN_AFTER
