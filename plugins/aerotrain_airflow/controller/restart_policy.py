"""The restart policy: whether a replica is restarted after a failure, how, and when.

Airflow's retries are the outer layer. What is final here would fail the same way there; if only the
restart budget is used up, another attempt may help.
"""

import signal
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum

from aerotrain.contract.event_log import Event
from aerotrain.contract.job import ReplicaName
from aerotrain.contract.limits import Restarts
from aerotrain.contract.status import Loss, Observation
from aerotrain_airflow.controller.history import is_alike

#: The number of failures in a row with the same message at the same step after which the program
#: itself is considered the cause, so that a restart would not help.
ALIKE = 3


class Remedy(StrEnum):
    """What happens after a failure, as a part of a sentence about the replica."""

    RESTART = "is restarted"
    OTHER_NODE = "is restarted, elsewhere if possible"
    MORE_MEMORY = "is restarted with more memory"
    RETRY = "is left to the task's retries"
    NONE = "would fail again"


@dataclass(frozen=True)
class Rule:
    """How a replica is restarted after a failure of one kind, and the budget that it uses."""

    remedy: Remedy
    budget: str
    may_be_a_bug: bool = False


# One row per failure kind.
RULES: Mapping[Loss, Rule] = {
    Loss.CRASH: Rule(Remedy.RESTART, "crashes", may_be_a_bug=True),
    Loss.TEMPORARY: Rule(Remedy.RESTART, "crashes"),
    Loss.HANG: Rule(Remedy.OTHER_NODE, "hangs", may_be_a_bug=True),
    Loss.MEMORY: Rule(Remedy.MORE_MEMORY, "memory"),
    Loss.PREEMPTED: Rule(Remedy.OTHER_NODE, "preemptions"),
    Loss.NODE: Rule(Remedy.OTHER_NODE, "preemptions"),
    Loss.START: Rule(Remedy.OTHER_NODE, "starts"),
}

#: Exit codes of signals from outside, which do not point to the program as the cause.
_FROM_OUTSIDE = (128 + signal.SIGKILL, 128 + signal.SIGTERM)


@dataclass(frozen=True)
class Verdict:
    """What happens after a failure, and why; ``why`` follows the replica's name in a sentence."""

    remedy: Remedy
    why: str

    @property
    def is_restarted(self) -> bool:
        return self.remedy not in (Remedy.RETRY, Remedy.NONE)


def kind_of(seen: Observation) -> Loss:
    """The failure kind; a failure without an explanation is a crash."""
    return seen.loss or Loss.CRASH


def judge(
    seen: Observation, step: int | None, earlier: Sequence[Event], budgets: Restarts
) -> Verdict:
    """The verdict on a failure at ``step``, after the ``earlier`` ones of the same replica."""
    rule = RULES[kind_of(seen)]
    if rule.may_be_a_bug and seen.exit_code not in _FROM_OUTSIDE:
        alike = [each for each in earlier[1 - ALIKE :] if is_alike(each, seen.reason, step)]
        if len(alike) == ALIKE - 1:
            where = "before its first step" if step is None else f"at step {step}"
            return Verdict(
                Remedy.NONE, f"{seen.reason}: {ALIKE} times {where}, so it would fail again"
            )
    budget = getattr(budgets, rule.budget)
    spent = sum(each.times for each in earlier if RULES[Loss(each.kind)].budget == rule.budget)
    if spent >= budget:
        used = f"it was restarted {spent} times, and restarts.{rule.budget} is {budget}"
        return Verdict(Remedy.RETRY, f"{seen.reason}; {used}")
    return Verdict(
        rule.remedy, f"{seen.reason}; it {rule.remedy} ({spent + 1} of {budget} {rule.budget})"
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
    failures: Mapping[ReplicaName, tuple[Event, Sequence[Event]]], *, all_ended: bool
) -> float:
    """The time of the restart after these failures, each with the replica's earlier ones.

    ``all_ended`` means that all replicas to be restarted have ended already.
    """
    events = [event for event, _ in failures.values()]
    first = min(event.at for event in events)
    times = [event.at + _pause(event, earlier) for event, earlier in failures.values()]
    kinds = {event.kind for event in events}
    if not all_ended:
        times.append(first + (SETTLE_PREEMPTED if Loss.PREEMPTED in kinds else SETTLE))
    if kinds == {Loss.TEMPORARY}:
        times.append(first + CAUSE_SHOWS)
    return max(times)


def _pause(failure: Event, earlier: Sequence[Event]) -> float:
    """No pause after the first two failures, then longer ones until it has run for ``_LIVED``."""
    in_a_row = 0
    later = failure.at
    for event in reversed(earlier):
        if later - event.at > _LIVED:
            break
        in_a_row, later = in_a_row + 1, event.at
    return min(_PAUSE * 2.0 ** (in_a_row - 2), _LONGEST_PAUSE) if in_a_row >= 2 else 0.0


def memory_factor(failures: Iterable[Event]) -> float:
    """The factor for the memory of a replica after these failures."""
    return _MORE_MEMORY ** sum(each.times for each in failures if each.kind == Loss.MEMORY)
