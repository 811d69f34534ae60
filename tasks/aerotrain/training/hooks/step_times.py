"""The time of the last steps, by what it was spent on."""

from collections import defaultdict, deque

from aerotrain.contract.replica_status import StepTime
from aerotrain.contract.replicas import ReplicaName, Role
from aerotrain.training.context import TrainingContext
from aerotrain.training.hooks.hooks import Hook, TrainState
from aerotrain.training.step_runner import Spent

#: The most executions of a replica whose mean is taken.
_EXECUTIONS = 20


class StepTimes(Hook):
    """Reports the time of the last steps of this replica, or of each worker of its coordinator."""

    def __init__(self, context: TrainingContext) -> None:
        self._own = context.replica.name
        self._status = context.services.status_writer
        self._spent: dict[ReplicaName, deque[Spent]] = defaultdict(
            lambda: deque(maxlen=_EXECUTIONS)
        )

    def on_execution(self, state: TrainState) -> None:
        spent = state.spent
        if spent is None:
            return
        name = self._own if spent.worker is None else ReplicaName(Role.WORKER, spent.worker)
        self._spent[name].append(spent)
        self._status.step_times = {str(each): mean(found) for each, found in self._spent.items()}

    def shares(self) -> dict[str, float]:
        """The shares of the time in which steps waited for input, and communicated if known."""
        found = [mean(each) for each in self._spent.values()]
        whole = sum(each.seconds for each in found)
        if not whole:
            return {}
        shares = {"input_wait": sum(each.input for each in found) / whole}
        known = [each.communication for each in found if each.communication is not None]
        if len(known) == len(found):
            shares["communication"] = sum(known) / whole
        return shares


def mean(executions: "deque[Spent]") -> StepTime:
    """The mean time of a step."""
    steps = sum(each.steps for each in executions)
    seconds = sum(each.seconds for each in executions) / steps
    waiting = sum(each.input for each in executions) / steps
    known = [each.computing for each in executions if each.computing is not None]
    communication = None
    if len(known) == len(executions):
        communication = max(0.0, seconds - waiting - sum(known) / steps)
    return StepTime(seconds=seconds, input=waiting, communication=communication)
