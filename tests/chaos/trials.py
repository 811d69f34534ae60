"""One trial: a fault, the training that it is injected into, and the errors of its outcome."""

import random
import tempfile
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

from benchmarks.fault_injection import Outcome, inject

from aerotrain.contract.status import State
from chaos.dag_runs import DagTraining, running_airflow
from chaos.faults import EPOCHS, EPOCHS_OF_A_RUN, DagFault, Fault, HostFault
from chaos.hosts import TwoHosts
from chaos.scenes import Place, Scene, lacking, scene_of

#: Timeout in seconds of an unresponsive replica: short, because trials wait for it.
PROGRESS_TIMEOUT = 12.0


class Named(Protocol):
    """A fault of any kind: its name, and the strategy of its training."""

    @property
    def name(self) -> str: ...

    @property
    def strategy(self) -> str: ...


@dataclass(frozen=True)
class Trial:
    """A fault, and after how many progress lines it is injected."""

    fault: Named
    after: int


class Ground(Protocol):
    """Where trials run: on processes of this machine, or on pods."""

    def lacks(self, fault: Any) -> str:
        """What is missing for that fault, as a continuation of "this machine"."""

    def judge(self, fault: Any, after: int) -> "Judged":
        """Carry out a trial, and compare its outcome with what the matrix promises."""


def schedule(runs: int, seed: int, faults: Sequence[Named]) -> list[Trial]:
    """Every fault once in a random order, then again in another, until there are enough."""
    chance = random.Random(seed)
    order: list[Named] = []
    while len(order) < runs:
        order += chance.sample(list(faults), len(faults))
    return [Trial(fault, chance.randint(4, 8)) for fault in order[:runs]]


@dataclass(frozen=True)
class Judged:
    """The outcome of a fault, its errors, and the last log lines if there are errors."""

    outcome: Outcome
    wrong: str
    tail: str = ""


@dataclass
class Scenes:
    """The scenes of all trials, each opened by the first that needs it."""

    stack: ExitStack
    _open: dict[Place, Scene] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self._folder = Path(self.stack.enter_context(tempfile.TemporaryDirectory()))
        self._airflows = 0

    def lacks(self, fault: Fault | HostFault | DagFault) -> str:
        return lacking(fault.place) if isinstance(fault, Fault) else ""

    def judge(self, fault: Fault | HostFault | DagFault, after: int) -> Judged:
        if isinstance(fault, DagFault):
            return self._of_run(fault, after)
        if isinstance(fault, HostFault):
            return self._of_hosts(fault, after)
        return self._of_set(fault, after)

    def _of_set(self, fault: Fault, after: int) -> Judged:
        scene = self._scene(fault.place)
        training = scene.testbed.train(
            fault.strategy,
            epochs=EPOCHS[fault.strategy],
            deadlines={"progress_timeout": PROGRESS_TIMEOUT},
        )
        outcome = inject(training, lambda harmed: fault.harm(harmed, scene), lines=after)
        wrong = what_is_wrong(fault, outcome)
        return Judged(outcome, wrong, training.tail() if wrong else "")

    def _of_hosts(self, fault: HostFault, after: int) -> Judged:
        testbed = self._scene(Place.PLAIN).testbed
        both = TwoHosts(testbed, fault.strategy, EPOCHS[fault.strategy])
        outcome, found = both.inject(lines=after)
        wrong = "; ".join(filter(None, [what_is_wrong(fault, outcome), *found]))
        return Judged(outcome, wrong, both.tail() if wrong else "")

    def _of_run(self, fault: DagFault, after: int) -> Judged:
        """Judge the trial in an Airflow of its own, so that trials do not influence each other."""
        self._airflows += 1
        with running_airflow(self._folder / f"airflow-{self._airflows}") as (stack, scratch):
            conf = {"strategy": fault.strategy, "epochs": EPOCHS_OF_A_RUN[fault.strategy]}
            training = DagTraining(stack, scratch, conf)
            outcome = training.inject(fault.harm, lines=after)
            wrong = what_is_wrong_with_a_run(fault, outcome)
            return Judged(outcome, wrong, training.tail() if wrong else "")

    def _scene(self, place: Place) -> Scene:
        if place not in self._open:
            made = scene_of(place, self._folder / place.name.lower())
            self._open[place] = self.stack.enter_context(made)
        return self._open[place]


class Promised(Protocol):
    """What the matrix promises: the replicas that restart, and how the training ends."""

    @property
    def back(self) -> frozenset[str]: ...

    @property
    def ends(self) -> State: ...


def what_is_wrong(fault: Promised, outcome: Outcome) -> str:
    """How the outcome differs from what the matrix promises."""
    found = []
    if outcome.state is not fault.ends:
        found.append(f"it {outcome.state}")
    if set(outcome.back) != fault.back:
        found.append(f"restarted: {', '.join(sorted(outcome.back)) or 'none'}")
    if outcome.left:
        found.append(f"left behind: {', '.join(outcome.left)}")
    return "; ".join(found)


def what_is_wrong_with_a_run(fault: DagFault, outcome: Outcome) -> str:
    """Why a run whose Airflow failed did not succeed, or trained more than once."""
    found = []
    if outcome.state is not State.SUCCEEDED:
        found.append(f"it {outcome.state}")
    if outcome.sets != 1:
        found.append(f"{outcome.sets} replica groups were launched")
    if (outcome.adoptions > 0) != fault.tries_again:
        found.append(f"adopted {outcome.adoptions} times")
    if outcome.back:
        found.append(f"restarted: {', '.join(outcome.back)}")
    if outcome.left:
        found.append(f"left behind: {', '.join(outcome.left)}")
    return "; ".join(found)
