"""Workers that are much slower than the others: found by their step times, named, and replaced."""

from collections.abc import Mapping
from statistics import median_low

from aerotrain.contract.replicas import Role
from aerotrain.contract.status import StepTime
from aerotrain.training.asynchronous import AsynchronousStepRunner
from aerotrain.training.context import TrainingContext
from aerotrain.training.hooks.hooks import Hook, TrainState
from aerotrain.training.hooks.report import StepTimes

#: A replica is a straggler from this robust z-score on, as in B. Iglewicz and D. Hoaglin, How to
#: Detect and Handle Outliers, 1993. The deviation counts as at least this share of the median:
#: that of a few workers may be 0.
_SCORE, _LEAST_DEVIATION = 3.5, 0.1

#: The standard deviation of a normal distribution over its median absolute deviation.
_SCALE = 1.4826


def scores(times: Mapping[str, StepTime]) -> dict[str, float]:
    """The robust z-score of the time of a step of each replica: how far it is above the median."""
    seconds = {name: each.seconds for name, each in times.items()}
    middle = median_low(seconds.values())
    deviation = _SCALE * median_low(abs(each - middle) for each in seconds.values())
    scale = max(deviation, _LEAST_DEVIATION * middle)
    return {name: (each - middle) / scale for name, each in seconds.items()}


class Stragglers(Hook):
    """Names workers that become stragglers, and replaces them if the training says so."""

    def __init__(
        self, context: TrainingContext, step_times: StepTimes, step_runner: AsynchronousStepRunner
    ) -> None:
        self._replaces = context.arguments.stragglers == "replace"
        self._step_times = step_times
        self._step_runner = step_runner
        self._known: set[str] = set()

    def on_execution(self, state: TrainState) -> None:
        times = self._step_times.whole()
        if len(times) < 2:
            return
        found = {name: each for name, each in scores(times).items() if each > _SCORE}
        for name in found.keys() - self._known:
            others = median_low(each.seconds for each in times.values())
            so = "it is replaced" if self._replaces else "it gets fewer batches than the others"
            print(
                f"warning: {name} is slow: a step takes {times[name].seconds * 1000:.3g} ms, and "
                f"{others * 1000:.3g} ms in the median of all (z-score {found[name]:.1f}); {so}",
                flush=True,
            )
            if self._replaces:
                self._step_runner.replace(_index(name))
                self._step_times.forget(name)
        self._known = set(found)


def _index(name: str) -> int:
    return int(name.removeprefix(f"{Role.WORKER}-"))
