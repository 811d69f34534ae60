"""How a job ended."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Self

from aerotrain.contract.errors import FinalError, TemporaryError
from aerotrain.contract.job import ReplicaName
from aerotrain.contract.status import Observation, State, job_state


@dataclass(frozen=True, kw_only=True)
class Ended:
    """How a job ended: its state, the replicas that caused it, and the message for the user."""

    state: State
    reason: str = ""
    causes: tuple[ReplicaName, ...] = ()

    def to_dict(self) -> dict[str, str]:
        """The state and the reason, as plain values for an Airflow event."""
        return {"state": self.state.value, "reason": self.reason}

    @classmethod
    def from_dict(cls, data: Mapping[str, str]) -> Self:
        """Read what ``to_dict`` wrote."""
        return cls(state=State(data["state"]), reason=data["reason"])

    def raise_unless_succeeded(self) -> None:
        """Raise the exception that says whether another attempt may help.

        Raises:
            FinalError: a replica failed, and would fail again.
            TemporaryError: a replica failed for another reason, or the job missed a deadline.
        """
        if self.state is not State.SUCCEEDED:
            raise (FinalError if self.state is State.FAILED else TemporaryError)(self.reason)


def job_ended(seen: Mapping[ReplicaName, Observation]) -> Ended:
    """The end of a job whose replicas are in these states.

    FAILED takes precedence over LOST: the peers of a replica that failed are LOST because of it.
    """
    state = job_state(seen)
    causes = tuple(name for name, each in seen.items() if each.state is state)
    reason = "; ".join(f"{name} {seen[name].reason}" for name in causes)
    return Ended(state=state, reason=reason, causes=causes)
