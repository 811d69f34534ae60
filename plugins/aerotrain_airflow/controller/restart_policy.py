"""What one loss means for the replica: it is restarted, how and when, or it is enough.

Airflow's retries are the outer ring. What stops for good here would fail the same way there;
what only has no budget left may be tried again.
"""

import signal
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum

from aerotrain.contract.event_log import Event
from aerotrain.contract.job import ReplicaName
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
    """The kind of a loss; one without an explanation is a crash."""
    return seen.loss or Loss.CRASH


def judge(
    seen: Observation, step: int | None, earlier: Sequence[Event], budgets: Restarts
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
    spent = sum(each.times for each in earlier if RULES[Loss(each.kind)].budget == rule.budget)
    if spent >= budget:
        return Verdict(
            Course.LEFT,
            f"{seen.reason}; it came back {spent} times, and restarts.{rule.budget} is {budget}",
        )
    return Verdict(
        rule.course, f"{seen.reason}; it {rule.course} ({spent + 1} of {budget} {rule.budget})"
    )


#: Seconds for those who are restarted with a lost one, to end by themselves: they notice within
#: 2 s, and may be handing on a checkpoint.
SETTLE = 3.0

#: The same after a preemption: they save first, for at most their grace of 8 s.
SETTLE_PREEMPTED = 10.0

#: Seconds in which a loss that names no cause of its own may still turn out to have one.
CAUSE_SHOWS = 1.0

#: Seconds before the third restart of a replica in a row, and at most before any. It doubles each
#: time, and begins again for one that has lived for so long.
_PAUSE, _LONGEST_PAUSE = 1.0, 30.0
_LIVED = 600.0

#: How much more memory a replica gets each time that it ran out.
_MORE_MEMORY = 1.5


def not_before(
    losses: Mapping[ReplicaName, tuple[Event, Sequence[Event]]], *, all_ended: bool
) -> float:
    """When the restart after these losses is due, each with the replica's earlier ones.

    ``all_ended`` says that all who are to be restarted have ended already.
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
    """None after the first two losses, then longer each time until it has lived for long."""
    row = 0
    later = loss.at
    for entry in reversed(earlier):
        if later - entry.at > _LIVED:
            break
        row, later = row + 1, entry.at
    return min(_PAUSE * 2.0 ** (row - 2), _LONGEST_PAUSE) if row >= 2 else 0.0


def memory_factor(losses: Iterable[Event]) -> float:
    """By how much the memory of a replica is multiplied after these losses."""
    return _MORE_MEMORY ** sum(each.times for each in losses if each.kind == Loss.MEMORY)
