"""What one loss means for the replica: it comes back, and how, or it is enough.

Airflow's retries are the outer ring. What stops for good here would fail the same way there;
what only has no budget left may be tried again.
"""

import signal
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum

from aerotrain.contract.ledger import Entry
from aerotrain.contract.limits import Restarts
from aerotrain.contract.status import Loss, Observation

#: So often in a row a replica may be lost with the same words at the same step: the program does
#: it, and will do it again.
ALIKE = 3


class Course(StrEnum):
    """What happens after a loss."""

    HERE = "comes back"
    ELSEWHERE = "comes back elsewhere"
    MORE_MEMORY = "comes back with more memory"
    LEFT = "is left to the task's retries"
    STOP = "stops for good"


@dataclass(frozen=True)
class Rule:
    """How a replica comes back after a loss of one kind, and which budget pays for it."""

    course: Course
    budget: str
    may_be_a_bug: bool = False


# A table, a kind of loss a row.
RULES: Mapping[Loss, Rule] = {
    Loss.CRASH: Rule(Course.HERE, "crashes", may_be_a_bug=True),
    Loss.TEMPORARY: Rule(Course.HERE, "crashes"),
    Loss.HANG: Rule(Course.ELSEWHERE, "hangs", may_be_a_bug=True),
    Loss.MEMORY: Rule(Course.MORE_MEMORY, "memory"),
    Loss.PREEMPTED: Rule(Course.ELSEWHERE, "preemptions"),
    Loss.NODE: Rule(Course.ELSEWHERE, "preemptions"),
    Loss.START: Rule(Course.ELSEWHERE, "starts"),
}

#: No program ends itself by these: somebody else did it, whatever step it was at.
_FROM_OUTSIDE = (128 + signal.SIGKILL, 128 + signal.SIGTERM)


@dataclass(frozen=True)
class Verdict:
    """What happens after one loss, and why, as a sentence goes on after the replica's name."""

    course: Course
    why: str

    @property
    def comes_back(self) -> bool:
        return self.course not in (Course.LEFT, Course.STOP)


def loss_of(seen: Observation) -> Loss:
    """The kind of a loss; one that nobody explains is a crash."""
    return seen.loss or Loss.CRASH


def judge(
    seen: Observation, step: int | None, earlier: Sequence[Entry], budgets: Restarts
) -> Verdict:
    """The verdict on a loss at ``step``, after the ``earlier`` ones of the same replica."""
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
    spent = sum(RULES[Loss(each.kind)].budget == rule.budget for each in earlier)
    if spent >= budget:
        return Verdict(
            Course.LEFT,
            f"{seen.reason}; it came back {spent} times, and restarts.{rule.budget} is {budget}",
        )
    return Verdict(
        rule.course, f"{seen.reason}; it {rule.course} ({spent + 1} of {budget} {rule.budget})"
    )
