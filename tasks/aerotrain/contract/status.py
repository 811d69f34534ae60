"""The states of a replica and of a job, the progress of a training, and the result of a job.

``ReplicaStatus`` is what the replicas of a training report of themselves, as objects in its store.
Any backend's replicas do, so a page about a run needs no access to processes or pods.
"""

import json
import re
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from enum import StrEnum
from typing import Any, Self

from aerotrain.contract.errors import ExitCode, SpecError, TerminationMessage
from aerotrain.contract.replicas import ReplicaName, Role
from aerotrain.contract.validation import read


class State(StrEnum):
    """The state of a replica or of a whole job. An unknown state is an error, never a guess."""

    PENDING = "pending"
    RUNNING = "running"
    SUCCEEDED = "succeeded"
    FAILED = "failed"  # final: a retry would fail the same way
    LOST = "lost"  # a retry may succeed: killed, crashed, or gone

    @property
    def ended(self) -> bool:
        return self in (State.SUCCEEDED, State.FAILED, State.LOST)


class Failure(StrEnum):
    """The failure kind of a replica, as far as it matters for a restart."""

    CRASH = "crash"  # its own fault: a signal, or an unknown exit code
    PREEMPTED = "preempted"  # evicted, drained, or on a spot node that ended
    QUEUE = "queue"  # its queue has taken its place, and may give it one again
    MEMORY = "memory"  # it needed more than its limit
    NODE = "node"  # its machine left, became unresponsive or rejected it
    START = "start"  # it never ran
    HANG = "hang"  # alive, without progress
    TEMPORARY = "temporary"  # by its own report, an external service was unavailable


@dataclass(frozen=True, kw_only=True, slots=True)
class Observation:
    """What a backend observed of one replica. ``exit_code`` is None while it runs, or if unknown.

    ``failure`` belongs to the state LOST; LOST without it counts as a crash. ``restarts`` is the
    restart count at the time of the observation; None if the replica is gone and the count is
    unknown. ``node`` is the replica's machine. ``heartbeat_age`` is the seconds since the last
    heartbeat, None if the backend sees none. ``waits_since`` is since when the replica has been
    waiting to start, by ``time.time()``; None if it has started once. ``began`` is when it started,
    None if that is unknown. ``unresponsive`` are the
    names of the replicas that did not answer it before it ended, from its termination message.
    ``message`` is the sentence of that, which ``reason`` has too.
    """

    state: State
    exit_code: int | None = None
    reason: str = ""
    message: str = ""
    failure: Failure | None = None
    restarts: int | None = 0
    node: str = ""
    heartbeat_age: float | None = None
    waits_since: float | None = None
    began: float | None = None
    unresponsive: frozenset[str] = frozenset()

    def sentence(self, name: ReplicaName) -> str:
        """Why the replica ``name`` ended: its own message first, as a list shows only the start."""
        if self.message:
            return f"{self.message} ({name}, exit code {self.exit_code})"
        return f"{name} {self.reason}"


#: What an exit code means for a replica. Every code that is not here is a crash.
OF_EXIT: Mapping[int, tuple[State, Failure | None]] = {
    ExitCode.OK: (State.SUCCEEDED, None),
    ExitCode.FINAL: (State.FAILED, None),
    ExitCode.TEMPORARY: (State.LOST, Failure.TEMPORARY),
    ExitCode.FROZEN: (State.LOST, Failure.HANG),
    ExitCode.SUPERSEDED: (State.FAILED, None),
    ExitCode.TERMINATED: (State.LOST, Failure.PREEMPTED),
}


def observed_exit(exit_code: int, message: str = "") -> Observation:
    """The observation of a replica that ended with ``exit_code`` and that termination message."""
    state, failure = OF_EXIT.get(exit_code, (State.LOST, Failure.CRASH))
    if exit_code > 128:
        reason = f"was ended by signal {exit_code - 128}"
    else:
        reason = f"exited with {exit_code}"
    said = TerminationMessage.parse(message)
    if said.no_heartbeat:
        state, failure = State.LOST, Failure.HANG
    return Observation(
        state=state,
        exit_code=exit_code,
        reason=f"{reason}: {said.reason}" if said.reason else reason,
        # Of a crash by a signal, it is only the last line of the log, and the signal is the reason.
        message="" if exit_code > 128 and failure is Failure.CRASH else said.reason,
        failure=failure,
        unresponsive=said.unresponsive,
    )


def job_state(replicas: Mapping[ReplicaName, Observation]) -> State:
    """The job's state, from its replicas': it ends when its chief ends or another replica fails.

    The success of workers and ps is not awaited, because they serve until they are ended. FAILED
    takes precedence over LOST: a final failure is usually the cause of the others.
    """
    states = [seen.state for seen in replicas.values()]
    chief = replicas[ReplicaName(Role.CHIEF, 0)].state
    if chief is State.SUCCEEDED:
        return chief
    for state in (State.FAILED, State.LOST):
        if state in states:
            return state
    return State.PENDING if State.PENDING in states else State.RUNNING


_LINE = re.compile(r"\bprogress ((?:[a-z_]+=\S+ ?)+)")
_DRIFT = re.compile(r"(?:^|\s)drift columns=(\d+)$")


@dataclass(frozen=True, kw_only=True)
class Progress:
    """The progress of training: global steps done and planned, the loss, and the pace.

    The pace, and so the time left, is unknown at first: the first steps include the compilation.
    ``input_wait`` and ``communication`` are shares of the time of a step, if known.
    A replica logs it as the word ``progress`` and ``key=value`` pairs (https://brandur.org/logfmt)::

        progress step=120 steps=540 loss=0.2310 examples_per_second=4210 seconds_left=12
    """

    step: int
    steps: int
    loss: float
    examples_per_second: float | None = None
    seconds_left: float | None = None
    input_wait: float | None = None
    communication: float | None = None

    def __str__(self) -> str:
        line = f"progress step={self.step} steps={self.steps} loss={self.loss:.4f}"
        for name, digits in _OPTIONAL.items():
            if (value := getattr(self, name)) is not None:
                line += f" {name}={value:.{digits}f}"
        return line

    @classmethod
    def parse(cls, line: str) -> Self | None:
        """The progress in a log line, after any prefix; None if the line has none."""
        match = _LINE.search(line)
        if match is None:
            return None
        pairs = dict(pair.split("=", 1) for pair in match[1].split())
        try:
            return cls(
                step=int(pairs["step"]),
                steps=int(pairs["steps"]),
                loss=float(pairs["loss"]),
                **{name: float(pairs[name]) for name in _OPTIONAL if name in pairs},
            )
        except (KeyError, ValueError):
            return None


#: The values of progress that may be unknown, and their digits after the point.
_OPTIONAL = {"examples_per_second": 0, "seconds_left": 0, "input_wait": 2, "communication": 2}


@dataclass(frozen=True, kw_only=True)
class Drift:
    """How many columns of a data set differ from those of the last one: ``drift columns=2``."""

    columns: int

    def __str__(self) -> str:
        return f"drift columns={self.columns}"

    @classmethod
    def parse(cls, line: str) -> Self | None:
        """The drift in a log line, after any prefix; None if the line has none."""
        match = _DRIFT.search(line)
        return cls(columns=int(match[1])) if match else None


@dataclass(frozen=True, kw_only=True)
class Result:
    """The result of a job, which its chief writes to the store last and its task returns.

    ``attempt`` identifies the launch that wrote it, so that no task uses an older result.
    """

    attempt: str
    value: Any
    version: int = 1

    def to_json(self) -> str:
        return json.dumps(asdict(self), sort_keys=True)

    @classmethod
    def from_json(cls, text: str | bytes) -> Self:
        return cls(**json.loads(text))


#: Seconds between two reports of a process. One that has not reported for several of these is gone.
REPORTED_EVERY = 10.0
GONE_AFTER = 3.5 * REPORTED_EVERY

#: The most processes of a replica that are kept, of which each but the last has ended.
_MOST = 50


@dataclass(frozen=True, kw_only=True)
class StepTime:
    """The mean time of the last steps of a replica, in seconds.

    ``input`` of it is the wait for batches. ``communication`` is what is neither that nor
    computing: the exchange of weights and gradients, and the wait for slower replicas. It is None
    where it is not known, or where nothing is exchanged.
    """

    seconds: float
    input: float
    communication: float | None = None


@dataclass(frozen=True, kw_only=True)
class ProcessStatus:
    """One process of a replica, which began at a time of ``time.time()`` on the machine ``host``.

    ``ready`` is since when it trains or serves, and ``seen`` the time of its last report. Memory is
    in bytes: now, at most so far, and the limit of its container if it has one. ``step_times`` has
    those of the replicas, by name, whose steps this process runs or schedules.
    """

    began: float
    host: str = ""
    ready: float | None = None
    seen: float = 0.0
    memory: int = 0
    peak: int = 0
    limit: int | None = None
    step_times: Mapping[str, StepTime] = field(default_factory=dict)


@dataclass(frozen=True)
class ReplicaStatus:
    """The processes of a replica in the order of their starts."""

    processes: tuple[ProcessStatus, ...]

    def followed_by(self, process: ProcessStatus) -> Self:
        """The status with one more process."""
        return type(self)((*self.processes, process)[-_MOST:])

    def to_json(self) -> bytes:
        return json.dumps(
            {"version": 1, "processes": [asdict(each) for each in self.processes]}
        ).encode()

    @classmethod
    def from_json(cls, content: bytes) -> Self:
        """Read a status.

        Raises:
            ValueError: the content is no status.
        """
        try:
            return cls(
                tuple(
                    read(ProcessStatus, each, strict=False)
                    for each in json.loads(content)["processes"]
                )
            )
        except (KeyError, TypeError, SpecError) as error:
            raise ValueError(f"no status of a replica: {error}") from error
