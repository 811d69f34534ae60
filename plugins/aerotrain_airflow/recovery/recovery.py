"""The recovery of one set, as a state machine: what is seen goes in, what to do comes out.

All it remembers is the set's ledger, so that whoever takes a set over goes on with its budgets.
"""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace

from aerotrain.contract.job import Job, ReplicaName
from aerotrain.contract.ledger import Entry, What
from aerotrain.contract.recovery import comeback, told_silent
from aerotrain.contract.status import Loss, Observation, State, job_state
from aerotrain_airflow.controller.ended import Ended, job_ended
from aerotrain_airflow.controller.restart_policy import Course, Verdict, judge, loss_of

Seen = Mapping[ReplicaName, Observation]

#: Seconds for those who have to come back with a lost one, to end by themselves: they notice
#: within 2 s, and may be handing on a checkpoint.
SETTLE = 3.0

#: The same where they were told to go: they save first, for at most their grace of 8 s.
SETTLE_TOLD = 10.0

#: Seconds in which a loss that names no cause of its own may still turn out to have one.
CAUSE_SHOWS = 1.0

#: Seconds before the third start of a replica in a row, and at most before any. It doubles each
#: time, and begins anew for one that has lived for so long.
_PAUSE, _LONGEST_PAUSE = 1.0, 30.0
_LIVED = 600.0


@dataclass(frozen=True, kw_only=True)
class Restart:
    """Replicas to be started anew, and ended before where they still run, at ``not_before``.

    ``elsewhere`` and ``roomier`` are those of them that need another node, or more memory.
    """

    names: frozenset[ReplicaName]
    because: str
    not_before: float
    elsewhere: frozenset[ReplicaName] = frozenset()
    roomier: frozenset[ReplicaName] = frozenset()


Decision = Restart | Ended | None


class Recovery:
    """Decides what becomes of ``job``'s set, whose ``ledger`` is what happened to it until now.

    ``write`` gets every new entry of the ledger, before it counts.
    """

    def __init__(self, job: Job, ledger: Iterable[Entry], write: Callable[[Entry], None]) -> None:
        self._job = job
        self._entries = list(ledger)
        self._write = write

    def generation(self, name: ReplicaName) -> int:
        """How often this replica came back."""
        return len(self._of(name, What.RESTART))

    def decide(self, seen: Seen, now: float, step: int | None = None) -> Decision:
        """What to do about a set of which this is ``seen``, at ``step`` of its training.

        A ``Restart`` is given anew each time until ``restarted`` says that it was done.
        """
        if job_state(seen) in (State.SUCCEEDED, State.FAILED):
            return job_ended(seen)
        lost = {name: each for name, each in seen.items() if each.state is State.LOST}
        if not lost:
            return None
        causes = _causes(lost)
        found = {name: self._detected(name, lost[name], now, step) for name in causes}
        verdicts = {
            name: judge(lost[name], entry.step, self._before(name), self._job.restarts)
            for name, entry in found.items()
        }
        stopped = {name: each for name, each in verdicts.items() if not each.comes_back}
        if stopped:
            return _stopped(stopped)
        silent = _silent(seen, causes)
        names = comeback(self._job, {*lost, *silent})
        return Restart(
            names=names,
            because="; ".join(f"{name} {each.why}" for name, each in verdicts.items()),
            not_before=self._not_before(seen, names, found),
            elsewhere=_those(verdicts, Course.ELSEWHERE) | silent,
            roomier=_those(verdicts, Course.MORE_MEMORY),
        )

    def restarted(self, decision: Restart, now: float, step: int | None = None) -> None:
        """Remember that ``decision`` was carried out."""
        for name in sorted(decision.names):
            self._add(
                Entry(
                    event=What.RESTART,
                    at=now,
                    step=step,
                    replica=str(name),
                    generation=self.generation(name) + 1,
                    because=decision.because,
                )
            )

    def has_no_place(self, name: ReplicaName, seen: Observation, now: float) -> None:
        """Remember that this replica had not started by its deadline: a next try may do without."""
        self._detected(name, replace(seen, loss=Loss.START), now, None)

    def _detected(
        self, name: ReplicaName, seen: Observation, now: float, step: int | None
    ) -> Entry:
        """The entry of this loss, made where it is news."""
        generation = self.generation(name)
        for entry in self._of(name, What.DETECT):
            if entry.generation == generation:
                return entry
        entry = Entry(
            event=What.DETECT,
            at=now,
            step=step,
            replica=str(name),
            generation=generation,
            kind=loss_of(seen).value,
            because=seen.reason,
        )
        self._add(entry)
        return entry

    def _not_before(
        self, seen: Seen, names: frozenset[ReplicaName], found: Mapping[ReplicaName, Entry]
    ) -> float:
        """When everything is ready for them: their peers gone, and a pause where it repeats."""
        first = min(entry.at for entry in found.values())
        waits = [entry.at + self._pause(name, entry) for name, entry in found.items()]
        kinds = {entry.kind for entry in found.values()}
        if not all(seen[name].state.ended for name in names):
            waits.append(first + (SETTLE_TOLD if Loss.PREEMPTED in kinds else SETTLE))
        if kinds == {Loss.TEMPORARY}:
            waits.append(first + CAUSE_SHOWS)
        return max(waits)

    def _pause(self, name: ReplicaName, loss: Entry) -> float:
        """None after the first two losses, then longer each time until it has lived for long."""
        row = 0
        later = loss.at
        for entry in reversed(self._before(name)):
            if later - entry.at > _LIVED:
                break
            row, later = row + 1, entry.at
        return min(_PAUSE * 2.0 ** (row - 2), _LONGEST_PAUSE) if row >= 2 else 0.0

    def _before(self, name: ReplicaName) -> list[Entry]:
        """The losses of this replica before it came back the last time."""
        generation = self.generation(name)
        return [each for each in self._of(name, What.DETECT) if each.generation < generation]

    def _of(self, name: ReplicaName, event: What) -> list[Entry]:
        return [each for each in self._entries if each.replica == str(name) and each.event is event]

    def _add(self, entry: Entry) -> None:
        self._write(entry)
        self._entries.append(entry)


def _causes(lost: Seen) -> list[ReplicaName]:
    """Those that were lost by themselves: who only misses another was lost to that one."""
    own = [name for name, each in lost.items() if loss_of(each) is not Loss.TEMPORARY]
    return own or list(lost)


def _silent(seen: Seen, causes: Iterable[ReplicaName]) -> frozenset[ReplicaName]:
    """Those that seem to run, and gave no answer to one that hung for it and has ended itself."""
    hung = [seen[name].reason for name in causes if loss_of(seen[name]) is Loss.HANG]
    told = frozenset().union(*map(told_silent, hung))
    return frozenset(
        name for name, each in seen.items() if not each.state.ended and str(name) in told
    )


def _stopped(verdicts: Mapping[ReplicaName, Verdict]) -> Ended:
    final = any(each.course is Course.STOP for each in verdicts.values())
    return Ended(
        state=State.FAILED if final else State.LOST,
        reason="; ".join(f"{name} {each.why}" for name, each in verdicts.items()),
        causes=tuple(verdicts),
    )


def _those(verdicts: Mapping[ReplicaName, Verdict], course: Course) -> frozenset[ReplicaName]:
    return frozenset(name for name, each in verdicts.items() if each.course is course)
