"""Trainings whose number of workers changes, while workers are slowed, preempted and killed.

A seed says what happens to a training, and after which of its epochs. The model counts how often it
was trained on each record: at the end of each epoch, the weights tell whether one was lost, or
trained twice.
"""

import json
import random
import re
import signal
import sys
import time
from collections.abc import Mapping, Sequence
from contextlib import redirect_stdout
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.elastic import BATCH, slowed
from benchmarks.fault_injection import Training, left_behind, replica_pid
from benchmarks.models.keyed import KEYS
from benchmarks.workloads import MODELS

from aerotrain.contract.event_log import EventType
from aerotrain.contract.job import Job
from aerotrain.contract.layout import JOB, MODEL
from aerotrain.contract.replicas import ReplicaSpec, Role
from aerotrain.contract.status import State
from aerotrain.launch.launcher import Launcher
from aerotrain.launch.wanted import want
from aerotrain.standalone import prepare
from aerotrain.store import open_store
from aerotrain.supervisor.processes import send
from aerotrain.user_code import publish_code
from chaos.faults import GANG, SERVED

#: The numbers of workers that a training may have.
SIZES = (2, 3, 4)

#: What the model says at the end of an epoch, in the chief.
_COUNTED = re.compile(r"\[chief\] counted: epoch (\d+), (\d+) lost, (\d+) twice")


@dataclass(frozen=True)
class Kind:
    """A kind of training, with enough epochs to outlive what happens on two cores.

    If its updates are not ``exact``, a worker that is killed leaves one step in doubt.
    """

    name: str
    strategy: str
    batch: int
    epochs: int
    arguments: Mapping[str, Any]
    exact: bool = True


KINDS = (
    Kind("asynchronous", SERVED, BATCH, 18, {"steps_per_execution": 20}, exact=False),
    Kind("synchronous", SERVED, 60, 8, {"update": "synchronous"}),
    Kind("mirrored", GANG, 60, 20, {}),
)


@dataclass(frozen=True)
class Act:
    """What happens ``seconds`` after an epoch: ``verb`` to a replica, or to a number of workers."""

    epoch: int
    seconds: float
    verb: str
    what: str

    def __str__(self) -> str:
        return f"{self.verb} {self.what}"


def plan(kind: Kind, seed: int) -> list[Act]:
    """What happens: the group begins with a size, and grows and shrinks among other things."""
    chance = random.Random(f"{kind.name} {seed}")
    sizes = [chance.choice(SIZES) for _ in range(3)]
    while (sizes[1] - sizes[0]) * (sizes[2] - sizes[1]) >= 0:
        sizes = [chance.choice(SIZES) for _ in range(3)]
    verbs = ["scale to", "scale to", "slow", "preempt", "kill"]
    if chance.random() < 0.25:
        verbs[-1] = "kill the rarely killed"
    chance.shuffle(verbs)
    epochs = sorted(chance.sample(range(1, kind.epochs * 3 // 4), len(verbs)))
    begin, *sizes = sizes
    acts, size = [Act(0, 0.0, "begin with", str(begin))], begin
    for epoch, verb in zip(epochs, verbs, strict=True):
        what = f"worker-{chance.randrange(size)}"
        if verb == "scale to":
            size = sizes.pop(0)
            what = str(size)
        elif verb == "kill the rarely killed":
            verb, what = "kill", chance.choice(["chief", "ps-0"][: 1 + (kind.strategy == SERVED)])
        acts.append(Act(epoch, chance.uniform(0.0, 1.0), verb, what))
    return acts


class Trainings:
    """Elastic trainings by ``launcher``, with their data and code in ``store``."""

    def __init__(self, folder: Path, store: str, launcher: Launcher[Any]) -> None:
        sys.path.insert(0, str(MODELS))
        self._store, self._launcher = store, launcher
        with redirect_stdout(sys.stderr):
            self._data = prepare(store, folder / "prepare", "keyed", splits={"train": 1.0})
        self._code = publish_code(open_store(store), MODELS)

    def started(self, kind: Kind, name: str, workers: int, **spot: bool) -> Training:
        """A training that begins with so many workers, with ``spot`` as for their replicas."""
        ps = [ReplicaSpec(role=Role.PS)] if kind.strategy == SERVED else []
        asked = ReplicaSpec(role=Role.WORKER, count=SIZES[-1], least=SIZES[0], **spot)
        arguments = {"data": self._data, "epochs": kind.epochs, "batch_size": kind.batch}
        job = Job(
            name=name,
            module="aerotrain.training.train",
            store=self._store,
            run=name,
            task="train",
            strategy=kind.strategy,
            replicas=(ReplicaSpec(role=Role.CHIEF), asked, *ps),
            code=self._code,
            arguments={**arguments, "model": "keyed", "checkpoint_interval": 2, **kind.arguments},
        )
        store = open_store(job.prefix)
        store.put(JOB, job.record())
        want(store, workers=workers)
        return Training(self._launcher, job)

    def judge(self, kind: Kind, seed: int) -> tuple[dict[str, object], str]:
        """Carry out the plan of a seed: a row of the table, and the last lines if it is wrong."""
        begun, (begin, *acts) = time.monotonic(), plan(kind, seed)
        with self.started(kind, f"{kind.name}-{seed}", int(begin.what)) as training:
            try:
                for act in acts:
                    _carry_out(act, training)
                found = what_is_wrong(kind, training, acts)
            except (RuntimeError, TimeoutError) as error:  # what was waited for did not happen
                found = [f"it hangs: {str(error).partition(chr(10))[0]}"]
            restarts = training.events_since(EventType.RESTART, 0.0)
            counted, tail = counts(training), training.tail()
        wrong = "; ".join([*found, *left_behind(training)])
        row = {
            "seed": seed,
            "kind": kind.name,
            "what happens": ", ".join(map(str, [begin, *acts])),
            "restarts": len(restarts),
            "seconds": round(time.monotonic() - begun),
            "lost": max((lost for _, lost, _ in counted), default=None),
            "twice": max((twice for _, _, twice in counted), default=None),
            "wrong": wrong or "-",
        }
        return row, tail if wrong else ""


def counts(training: Training) -> list[tuple[int, int, int]]:
    """Of each epoch that ended its number, and how many records are lost, and trained twice."""
    found = (_COUNTED.fullmatch(line) for _, line in training.lines)
    return [(int(each[1]), int(each[2]), int(each[3])) for each in found if each]


def _carry_out(act: Act, training: Training) -> None:
    training.until(lambda: any(epoch >= act.epoch for epoch, *_ in counts(training)))
    time.sleep(act.seconds)
    if act.verb == "scale to":
        want(open_store(training.job.prefix), workers=int(act.what))
        return
    pid = replica_pid(training.handle, act.what)
    if act.verb == "slow":
        with slowed(pid):
            time.sleep(4.0)
    else:
        send([pid], signal.SIGKILL if act.verb == "kill" else signal.SIGTERM)


def what_is_wrong(kind: Kind, training: Training, acts: Sequence[Act] = ()) -> list[str]:
    """How the end of a training, for which this waits, differs from the end without these acts."""
    ended = training.end.result(300)
    if ended.state is not State.SUCCEEDED:
        return [f"it {ended.state}: {ended.reason}"]
    wrong = []
    done = json.loads(open_store(training.job.prefix).get(MODEL))["step"]
    if done != (steps := kind.epochs * -(-KEYS // kind.batch)):
        wrong.append(f"it has {done} of {steps} steps")
    killed = sum(each.verb == "kill" and each.what.startswith("worker") for each in acts)
    doubt = 0 if kind.exact else killed * kind.batch
    wrong += [
        f"epoch {epoch} has {lost} lost and {twice} twice"
        for epoch, lost, twice in counts(training)
        if lost + twice > doubt
    ]
    asked = [int(each.what) for each in acts if each.verb == "scale to"]
    # At first it has the most, which it keeps if it is asked for less and more again at once.
    resizes = (each for each in training.events() if each.event is EventType.RESIZE)
    sizes = [SIZES[-1], *(each.workers for each in resizes)]
    if asked and sizes[-1:] != asked[-1:]:
        wrong.append(f"its sizes were {sizes}")
    return wrong
