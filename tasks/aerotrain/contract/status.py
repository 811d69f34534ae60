"""The states of a replica and of a job, and the result that a job leaves."""

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from enum import StrEnum
from typing import Any, Self

from aerotrain.contract.errors import ExitCode
from aerotrain.contract.job import ReplicaName, Role
from aerotrain.contract.termination import TerminationMessage


class State(StrEnum):
    """What a replica or a whole job is doing; an unknown state is an error, never a guess."""

    PENDING = "pending"
    RUNNING = "running"
    SUCCEEDED = "succeeded"
    FAILED = "failed"  # final: another try would fail the same way
    LOST = "lost"  # worth another try: killed, crashed, or simply gone

    @property
    def ended(self) -> bool:
        return self in (State.SUCCEEDED, State.FAILED, State.LOST)


class Loss(StrEnum):
    """Why a replica was lost, as far as it matters to its coming back."""

    CRASH = "crash"  # its own doing: a signal, or an exit code that nobody knows
    PREEMPTED = "preempted"  # evicted, drained, a spot node's end
    MEMORY = "memory"  # it asked for more than it was given
    NODE = "node"  # its machine left, fell silent or refused it
    START = "start"  # it never ran
    HANG = "hang"  # alive, and made no progress
    TEMPORARY = "temporary"  # it says itself that something outside of it was away


@dataclass(frozen=True, kw_only=True)
class Observation:
    """What a backend saw of one replica. ``exit_code`` is None while it runs, or unknown.

    ``loss`` is for the state LOST alone, and a loss without one counts as a crash. ``restarts``
    counts how often it was restarted until this was seen of it; None where it is gone and that is
    not known. ``node`` is the machine it is on. ``heartbeat_age`` is the seconds since its last
    heartbeat, None where the backend sees none. ``waits_since`` is since when it has yet to start,
    a time of ``time.time()``; None for what has started once. ``unresponsive`` are the names of
    the replicas that gave it no answer before it ended, as its termination message has them.
    """

    state: State
    exit_code: int | None = None
    reason: str = ""
    loss: Loss | None = None
    restarts: int | None = 0
    node: str = ""
    heartbeat_age: float | None = None
    waits_since: float | None = None
    unresponsive: frozenset[str] = frozenset()


#: What an exit code says of a replica. Every code that is not here is a crash.
OF_EXIT: Mapping[int, tuple[State, Loss | None]] = {
    ExitCode.OK: (State.SUCCEEDED, None),
    ExitCode.FINAL: (State.FAILED, None),
    ExitCode.TEMPORARY: (State.LOST, Loss.TEMPORARY),
    ExitCode.FROZEN: (State.LOST, Loss.HANG),
    ExitCode.SUPERSEDED: (State.FAILED, None),
    ExitCode.TERMINATED: (State.LOST, Loss.PREEMPTED),
}


def observed_exit(exit_code: int, message: str = "") -> Observation:
    """The observation of a replica that ended with ``exit_code`` and that termination message."""
    state, loss = OF_EXIT.get(exit_code, (State.LOST, Loss.CRASH))
    if exit_code > 128:
        reason = f"was ended by signal {exit_code - 128}"
    else:
        reason = f"exited with {exit_code}"
    said = TerminationMessage.parse(message)
    return Observation(
        state=state,
        exit_code=exit_code,
        reason=f"{reason}: {said.reason}" if said.reason else reason,
        loss=loss,
        unresponsive=said.unresponsive,
    )


def job_state(replicas: Mapping[ReplicaName, Observation]) -> State:
    """The job's state from its replicas': it ends when its chief ends or any other fails.

    Workers and ps serve until they are ended, so their success is not waited for. A
    replica that failed for good comes before those that were lost: mostly they were lost to it.
    """
    states = [seen.state for seen in replicas.values()]
    chief = replicas[ReplicaName(Role.CHIEF, 0)].state
    if chief is State.SUCCEEDED:
        return chief
    for state in (State.FAILED, State.LOST):
        if state in states:
            return state
    return State.PENDING if State.PENDING in states else State.RUNNING


@dataclass(frozen=True, kw_only=True)
class Result:
    """What a job leaves in the store as its last act: the value its task hands on.

    ``attempt`` names the launch that wrote it, so that no task trusts an older one.
    """

    attempt: str
    value: Any
    version: int = 1

    def to_json(self) -> str:
        return json.dumps(asdict(self), sort_keys=True)

    @classmethod
    def from_json(cls, text: str | bytes) -> Self:
        return cls(**json.loads(text))
