"""One job launched on two hosts: the first one froze, was given up, and resumes too late.

Both hosts are this machine: each has a folder of replica groups, and they share only the store.
"""

import json
import re
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import replace

from benchmarks.fault_injection import Outcome, Training, inject, left_behind
from benchmarks.testbed import Testbed

from aerotrain.contract.errors import ExitCode
from aerotrain.contract.status import State
from aerotrain.contract.training import TrainArguments
from aerotrain.store import open_store
from aerotrain.training.checkpoints.retention import Name, complete_checkpoints

#: Timeout in seconds of an unresponsive replica: never, as a frozen host would not enforce one.
_NEVER = 3600.0

_PUBLISHED = re.compile(r"the checkpoint of step (\d+) is in the store")


class TwoHosts:
    """A training on a first host, which a second host takes over."""

    def __init__(self, testbed: Testbed, strategy: str, epochs: int) -> None:
        self._testbed = testbed
        self.first = testbed.train(strategy, epochs=epochs, deadlines={"progress_timeout": _NEVER})
        self._names = [str(name) for name in self.first.job.names()]

    def inject(self, *, lines: int) -> tuple[Outcome, list[str]]:
        """Freeze the first host, resume it once the second trains, and follow the second.

        Returns:
            The outcome of the second host's training, and the errors of both.
        """
        with self.first as first:
            first.until_under_way(lines)
            first.until(lambda: published(first))
            if first.end.done():
                raise RuntimeError(f"the training ended before the fault:\n{first.tail()}")
            with ExitStack() as frozen:
                for name in self._names:
                    process = first.process(name)
                    process.suspend()
                    frozen.callback(process.resume)
                self.second = self._testbed.again(first.job)
                outcome = inject(self.second, lambda _: self._go_on(frozen), lines=lines)
            ended = first.end.result()
        wrong, expected = wrong_line(self.second), f"exit code {ExitCode.SUPERSEDED}"
        if ended.state is not State.FAILED or expected not in ended.reason:
            wrong.append(f"the first host's {ended.state}: {ended.reason}")
        left = [*outcome.left, *left_behind(first)]
        return replace(outcome, verdict=ended.reason, left=left), wrong

    def _go_on(self, frozen: ExitStack) -> None:
        """Resume the first host once the second has published: until then, they do not conflict."""
        self.second.until(lambda: published(self.second))
        frozen.close()
        self.first.end.result(120)

    def tail(self) -> str:
        return f"{self.first.tail()}\n{self.second.tail()}"


def published(training: Training) -> list[int]:
    """The steps of the checkpoints that the training reports as published to the store."""
    steps = [int(found[1]) for _, line in training.lines if (found := _PUBLISHED.search(line))]
    return list(dict.fromkeys(steps))


def wrong_line(training: Training) -> list[str]:
    """The errors of the store: how it differs from what ``training`` published."""
    store = open_store(training.job.prefix)
    names = complete_checkpoints(store)
    found = unlike(published(training), names, TrainArguments(model="", data="").keep)
    if not json.loads(store.get("model.json"))["checkpoint"].endswith(f"/{names[-1]}"):
        found.append("model.json names another checkpoint than the last")
    if json.loads(store.get("result.json"))["attempt"] != training.handle.rpartition("/")[2]:
        found.append("result.json is of another launch")
    if (lease := json.loads(store.get("lease.json")))["token"] != names[-1].token:
        found.append(f"the lease has token {lease['token']}")
    return found


def unlike(published: Sequence[int], names: Sequence[Name], keep: int) -> list[str]:
    """How the newest checkpoints in the store differ from the last ones that were published."""
    newest = names[-1].token if names else 0
    there = [name.step for name in names if name.token == newest]
    if there == list(published[-keep:]):
        return []
    return [f"its last checkpoints are those of steps {published[-keep:]}, and {there} are there"]
