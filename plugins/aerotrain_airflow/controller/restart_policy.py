"""The restart policy: whether a replica is restarted after a failure, how, and when.

Airflow's retries are the outer layer. What is final here would fail the same way there; if only the
restart budget is used up, another attempt may help.
"""

import signal
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum

from aerotrain.contract.event_log import Event
from aerotrain.contract.job import ReplicaName, Restarts
from aerotrain.contract.status import Loss, Observation

#: The number of failures in a row with the same message at the same step after which the program
#: itself is considered the cause, so that a restart would not help.
ALIKE = 3


class Course(StrEnum):
    """What happens after a failure."""

    HERE = "comes back"
    ELSEWHERE = "comes back elsewhere"
    MORE_MEMORY = "comes back with more memory"
    LEFT = "is left to the task's retries"
    STOP = "stops for good"


@dataclass(frozen=True)
class Rule:
    """How a replica is restarted after a failure of one kind, and the budget that it uses."""

    course: Course
    budget: str
    may_be_a_bug: bool = False


# One row per failure kind.
RULES: Mapping[Loss, Rule] = {
    Loss.CRASH: Rule(Course.HERE, "crashes", may_be_a_bug=True),
    Loss.TEMPORARY: Rule(Course.HERE, "crashes"),
    Loss.HANG: Rule(Course.ELSEWHERE, "hangs", may_be_a_bug=True),
    Loss.MEMORY: Rule(Course.MORE_MEMORY, "memory"),
    Loss.PREEMPTED: Rule(Course.ELSEWHERE, "preemptions"),
    Loss.NODE: Rule(Course.ELSEWHERE, "preemptions"),
    Loss.START: Rule(Course.ELSEWHERE, "starts"),
}

#: Exit codes of signals from outside, which do not point to the program as the cause.
_FROM_OUTSIDE = (128 + signal.SIGKILL, 128 + signal.SIGTERM)


@dataclass(frozen=True)
class Verdict:
    """What happens after a failure, and why; ``why`` follows the replica's name in a sentence."""

    course: Course
    why: str

    @property
    def comes_back(self) -> bool:
        return self.course not in (Course.LEFT, Course.STOP)


def loss_of(seen: Observation) -> Loss:
    """The failure kind; a failure without an explanation is a crash."""
    return seen.loss or Loss.CRASH


def judge(
    seen: Observation, step: int | None, earlier: Sequence[Event], budgets: Restarts
) -> Verdict:
    """The verdict on a failure at ``step``, after the ``earlier`` ones of the same replica."""
    loss = loss_of(seen)
    rule = RULES[loss]
    if rule.may_be_a_bug and seen.exit_code not in _FROM_OUTSIDE:
        last = earlier[1 - ALIKE :]
        alike = [each for each in last if (each.because, each.step) == (seen.reason, step)]
        if len(alike) == ALIKE - 1:
            where = "before its first step" if step is None else f"at step {step}"
            return Verdict(
                Course.STOP, f"{seen.reason}: {ALIKE} times {where}, so it would do it again"
            )
    budget = getattr(budgets, rule.budget)
    spent = sum(each.times for each in earlier if RULES[Loss(each.kind)].budget == rule.budget)
    if spent >= budget:
        return Verdict(
            Course.LEFT,
            f"{seen.reason}; it came back {spent} times, and restarts.{rule.budget} is {budget}",
        )
    return Verdict(
        rule.course, f"{seen.reason}; it {rule.course} ({spent + 1} of {budget} {rule.budget})"
    )


#: Seconds for the other replicas that are restarted with a failed one to end by themselves: they
#: notice the failure within 2 s, and may still be uploading a checkpoint.
SETTLE = 3.0

#: The same after a preemption: they first save a checkpoint, within a grace period of 8 s.
SETTLE_PREEMPTED = 10.0

#: Seconds in which the cause of a failure without one of its own may still be observed.
CAUSE_SHOWS = 1.0

#: Seconds before the third restart of a replica in a row, and the maximum. The pause doubles each
#: time, and starts again once a replica has run for ``_LIVED`` seconds.
_PAUSE, _LONGEST_PAUSE = 1.0, 30.0
_LIVED = 600.0

#: The factor for a replica's memory each time that it ran out.
_MORE_MEMORY = 1.5


def not_before(
    losses: Mapping[ReplicaName, tuple[Event, Sequence[Event]]], *, all_ended: bool
) -> float:
    """The time of the restart after these failures, each with the replica's earlier ones.

    ``all_ended`` means that all replicas to be restarted have ended already.
    """
    entries = [entry for entry, _ in losses.values()]
    first = min(entry.at for entry in entries)
    waits = [entry.at + _pause(entry, earlier) for entry, earlier in losses.values()]
    kinds = {entry.kind for entry in entries}
    if not all_ended:
        waits.append(first + (SETTLE_PREEMPTED if Loss.PREEMPTED in kinds else SETTLE))
    if kinds == {Loss.TEMPORARY}:
        waits.append(first + CAUSE_SHOWS)
    return max(waits)


def _pause(loss: Event, earlier: Sequence[Event]) -> float:
    """No pause after the first two failures, then longer ones until it has run for ``_LIVED``."""
    row = 0
    later = loss.at
    for entry in reversed(earlier):
        if later - entry.at > _LIVED:
            break
        row, later = row + 1, entry.at
    return min(_PAUSE * 2.0 ** (row - 2), _LONGEST_PAUSE) if row >= 2 else 0.0


def memory_factor(losses: Iterable[Event]) -> float:
    """The factor for the memory of a replica after these failures."""
    return _MORE_MEMORY ** sum(each.times for each in losses if each.kind == Loss.MEMORY)
