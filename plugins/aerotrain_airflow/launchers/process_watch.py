"""One set of local processes, looked at again and again until its job has ended."""

import errno
import time
from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager, suppress
from logging import getLogger
from pathlib import Path
from typing import Protocol

from aerotrain.contract.errors import TemporaryError
from aerotrain.contract.job import Job, ReplicaName
from aerotrain.contract.progress import Progress
from aerotrain.contract.recovery import Formation
from aerotrain.contract.status import Observation, State
from aerotrain_airflow.launchers.base import Emit, LogLine
from aerotrain_airflow.launchers.process_set import Positions, ProcessSet
from aerotrain_airflow.recovery.ended import Ended
from aerotrain_airflow.recovery.recovery import Recovery, Seen

#: Seconds until a disk that was full is tried again.
_ROOM_EVERY = 2.0

_LOG = getLogger(__name__)


class Processes(Protocol):
    """What a watch does to the world."""

    def observe(self, address: str) -> Mapping[ReplicaName, Observation]:
        """The state of every replica."""

    def respawn(self, address: str, names: Collection[ReplicaName]) -> None:
        """End those replicas where they still run, and start them anew."""


class ProcessWatch:
    """A watch over the set at ``address``, for as long as it is ``holder``'s.

    ``emit`` gets every line that its replicas write, once, whoever watched it before. ``until``
    is a time of ``time.time()`` at which the job is to have ended.
    """

    def __init__(
        self, processes: Processes, address: str, holder: str, emit: Emit, until: float | None
    ) -> None:
        self._processes = processes
        self._address = address
        self._holder = holder
        self._emit = emit
        self._set = ProcessSet(Path(address))
        self._job = self._set.job
        self._deadline = min(self._set.born + self._job.deadlines.run, until or float("inf"))
        self._recovery = Recovery(self._job, self._set.ledger(), self._set.note)
        self._pulses = Pulses(self._job)
        self._positions = self._set.positions()
        self._step: int | None = None
        self._trains = False
        self._room_after = 0.0  # by time.monotonic(), where the disk was full; else 0

    def look(self) -> Ended | None:
        """Pass on what is new, have those who were lost come back; the job's end, once it has.

        Raises:
            OSError: the machine refused something else than room on its disk.
            TemporaryError: a port was lost.
        """
        self._end_silent()
        seen = self._processes.observe(self._address)  # before the logs: then they are whole
        self._pass_on()
        if len(seen) < len(list(self._job.names())):
            return self._lost("was ended from outside")
        if not self._set.is_held_by(self._holder):
            return self._lost("was taken over by another try of its task")
        ended = self._recovered(seen)
        if ended is None and time.time() > self._deadline:
            return self._lost(
                f"ran for longer than its deadline of {self._job.deadlines.run:.0f} s; allow it "
                "more, or give it more replicas"
            )
        return ended

    def _lost(self, why: str) -> Ended:
        return Ended(state=State.LOST, reason=f"{self._job.name} {why}")

    def _pass_on(self) -> None:
        for line in new_lines(self._set, self._positions):
            self._emit(line)
            progress = Progress.parse(line.text)
            if progress is not None:
                self._step, self._trains = progress.step, True
        self._set.keep_positions(self._positions)

    def _recovered(self, seen: Seen) -> Ended | None:
        """The end, if that is what is decided about ``seen``; else whoever was lost is back.

        Where the disk takes nothing just now, that waits for ``_ROOM_EVERY`` seconds.
        """
        if time.monotonic() < self._room_after:
            return None
        try:
            decision = self._recovery.decide(seen, time.time(), self._step)
            if isinstance(decision, Ended):
                return decision
            if decision is None or time.time() < decision.not_before:
                return None
            self._processes.respawn(self._address, decision.names)
            names = ", ".join(map(str, sorted(decision.names)))
            _LOG.warning("%s; started anew: %s", decision.because, names)
            self._recovery.restarted(decision, time.time(), self._step)
        except OSError as error:
            if error.errno != errno.ENOSPC:
                raise
            if not self._room_after:
                _LOG.warning("%s: who was lost comes back when there is room", error)
            self._room_after = time.monotonic() + _ROOM_EVERY
            return None
        self._room_after, self._trains = 0.0, False
        return None

    def _end_silent(self) -> None:
        """End whoever runs and gives no sign of life."""
        beats = {
            folder.name: folder.heartbeat()
            for folder in self._set.replicas()
            if folder.observe().state is State.RUNNING
        }
        for name in self._pulses.silent(beats, trains=self._trains):
            with suppress(FileNotFoundError):  # the set was stopped meanwhile
                self._set.replica(name).silence(
                    "gave no sign of life for "
                    f"{self._job.deadlines.progress_timeout:.0f} s, and was ended"
                )


def new_lines(of: ProcessSet, positions: Positions) -> Iterator[LogLine]:
    """Read on in every replica's log, and move ``positions`` there."""
    for folder in of.replicas():
        name = folder.name
        new = folder.read_log(positions.get(str(name), 0))
        positions[str(name)] = positions.get(str(name), 0) + len(new)
        for line in new.decode(errors="replace").splitlines():
            yield LogLine(name, line)


@contextmanager
def what_is_short() -> Iterator[None]:
    """Have the system's refusals said in a sentence: a disk that is full, above all.

    Raises:
        TemporaryError: the system refused something.
    """
    try:
        yield
    except OSError as error:
        raise TemporaryError(
            f"the replicas could not be looked after: {error}; free what is short, or set "
            "[aerotrain] scratch to another disk"
        ) from error


class Pulses:
    """Who has given no sign of life for longer than ``patience`` seconds.

    Counted by this process's own clock from what it saw change: a machine that slept, or a disk
    whose clock is wrong, makes nobody look dead. The members of a gang that has not trained yet
    have ``start`` seconds: TensorFlow lets no Python run while they wait for each other.
    """

    def __init__(self, job: Job) -> None:
        self._patience = job.deadlines.progress_timeout
        self._start = max(job.deadlines.start, self._patience)
        self._is_gang = Formation.of(job) is Formation.GANG
        self._last: dict[ReplicaName, tuple[float | None, float]] = {}

    def silent(
        self,
        beats: dict[ReplicaName, float | None],
        now: float | None = None,
        *,
        trains: bool = True,
    ) -> list[ReplicaName]:
        """Those of them who are silent, if these are their last signs of life."""
        patience = self._start if self._is_gang and not trains else self._patience
        now = time.monotonic() if now is None else now
        self._last = {
            name: last
            if (last := self._last.get(name)) is not None and last[0] == beat
            else (beat, now)
            for name, beat in beats.items()
        }
        return [name for name, (_, seen) in self._last.items() if now - seen > patience]
