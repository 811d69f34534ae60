"""Who comes back when somebody is lost: the matrix of recovery, one table for code and people.

The first rows are rules that ``comeback`` applies. The others are promises that several parts
keep together; docs/recovery.md shows the same table, and a test holds the two equal.
"""

import re
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from enum import StrEnum

from aerotrain.contract.job import Job, ReplicaName, Role


class Formation(StrEnum):
    """How the replicas of a job stand to each other, whatever their strategy is called."""

    SERVED = "`parameter_server`"
    GANG = "`multi_worker_mirrored`, `dtensor` over processes"
    ALONE = "any of one process"
    ANY = "any"

    @classmethod
    def of(cls, job: Job) -> "Formation":
        """The formation of that job, its evaluator and its input left aside."""
        if job.rules.ps:
            return cls.SERVED
        return cls.GANG if job.rules.peers and job.count(Role.WORKER) else cls.ALONE


@dataclass(frozen=True)
class Row:
    """One loss: what happens, and what it may cost.

    Where ``role`` is lost, it comes back, and all of ``brings`` with it.
    """

    formation: Formation
    lost: str
    happens: str
    costs: str
    role: Role | None = None
    brings: tuple[Role, ...] = ()


_INTERVAL = "up to one checkpoint interval"
_CHECKPOINT = "from the checkpoint"
_TOGETHER = (Role.CHIEF, Role.WORKER)

# A table, a loss a row.
# fmt: off
MATRIX: tuple[Row, ...] = (
    Row(Formation.SERVED, "a worker", "that worker alone comes back; the others never stop",
        "the steps in flight", Role.WORKER),
    Row(Formation.SERVED, "a ps", f"all ps and the chief come back, {_CHECKPOINT}; workers are "
        "kept", _INTERVAL, Role.PS, (Role.PS, Role.CHIEF)),
    Row(Formation.SERVED, "the chief", f"the chief comes back, {_CHECKPOINT}; ps and workers are "
        "kept", _INTERVAL, Role.CHIEF),
    Row(Formation.GANG, "the chief", f"all come back together, {_CHECKPOINT}", _INTERVAL,
        Role.CHIEF, _TOGETHER),
    Row(Formation.GANG, "a worker", f"all come back together, {_CHECKPOINT}; a stale peer is "
        "ended from outside", _INTERVAL, Role.WORKER, _TOGETHER),
    Row(Formation.ALONE, "the process", f"it comes back, {_CHECKPOINT}", _INTERVAL, Role.CHIEF),
    Row(Formation.ANY, "the evaluator", "it comes back alone; the training never stops",
        "nothing", Role.EVALUATOR),
    Row(Formation.ANY, "an `input`", "it comes back alone; others, if there are, bring what "
        "is read meanwhile", "some records come again, others later", Role.INPUT),
    Row(Formation.ANY, "the dispatcher", "all but the ps and the evaluator come back, "
        f"{_CHECKPOINT}", _INTERVAL,
        Role.DISPATCHER, (Role.CHIEF, Role.WORKER, Role.INPUT)),
    Row(Formation.ANY, "a replica that is told to go (SIGTERM, eviction, spot notice)",
        "it saves a checkpoint, leaves, and resumes elsewhere", "nothing"),
    Row(Formation.ANY, "a replica that is alive and makes no progress",
        "it is found by its heartbeat or its step, ended, and treated as lost",
        "`deadlines.progress_timeout` (60 s)"),
    Row(Formation.ANY, "a node that falls silent, nothing closed", "the chief's own watchdog "
        "ends it, or the one outside does; what is silent is replaced, never waited for",
        "`deadlines.progress_timeout` (60 s)"),
    Row(Formation.ANY, "Airflow's worker, scheduler or triggerer", "training goes on; the task "
        "adopts it when it is back", "nothing"),
    Row(Formation.ANY, "the object store, away or slow", "training goes on; uploads wait and "
        "catch up; past a deadline the job fails and names every local checkpoint", "nothing"),
    Row(Formation.ANY, "the whole machine or cluster", "the retry resumes from the last whole "
        "checkpoint", _INTERVAL),
)
# fmt: on


#: How a replica that ends itself names those that it waited for in vain.
_SILENT = re.compile(r"((?:\S+ and )*\S+) do(?:es)? not answer")


def say_silent(names: Sequence[str]) -> str:
    """Who does not answer, in the words that ``told_silent`` reads."""
    return f"{' and '.join(names)} {'does' if len(names) == 1 else 'do'} not answer"


def told_silent(words: str) -> frozenset[str]:
    """Whom the last words of a replica name: they are lost, whatever else is seen of them."""
    told = _SILENT.search(words)
    return frozenset(told[1].split(" and ")) if told else frozenset()


def comeback(job: Job, lost: Collection[ReplicaName]) -> frozenset[ReplicaName]:
    """Who has to be started anew, and ended before where they still run, if these are lost."""
    names = list(job.names())
    back = set(lost)
    for name in lost:
        brings = _row_of(job, name.role).brings
        back.update(each for each in names if each.role in brings)
    return frozenset(back)


def _row_of(job: Job, role: Role) -> Row:
    formations = (Formation.of(job), Formation.ANY)
    return next(row for row in MATRIX if row.role is role and row.formation in formations)
