"""The recovery matrix: which replicas restart after a failure, one table for code and docs.

``replicas_to_restart`` applies the first rows. The other rows are implemented by several modules.
docs/recovery.md shows the same table, and a test compares the two.
"""

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from enum import StrEnum

from aerotrain.contract.job import Job, ReplicaName, Role


class Topology(StrEnum):
    """How the replicas of a job depend on each other, independent of the strategy's name."""

    SERVED = "`parameter_server`"
    GANG = "`multi_worker_mirrored`, `dtensor` over processes"
    ALONE = "any of one process"
    ANY = "any"

    @classmethod
    def of(cls, job: Job) -> "Topology":
        """The topology of a job, without its evaluator and its input."""
        if job.rules.ps:
            return cls.SERVED
        return cls.GANG if job.rules.peers and job.count(Role.WORKER) else cls.ALONE


@dataclass(frozen=True)
class Row:
    """One failure: what happens, and what it may cost.

    If ``role`` fails, it restarts together with all roles in ``brings``.
    """

    formation: Topology
    lost: str
    happens: str
    costs: str
    role: Role | None = None
    brings: tuple[Role, ...] = ()


_INTERVAL = "up to one checkpoint interval"
_CHECKPOINT = "from the checkpoint"
_TOGETHER = (Role.CHIEF, Role.WORKER)

# One row per failure.
# fmt: off
MATRIX: tuple[Row, ...] = (
    Row(Topology.SERVED, "a worker", "that worker alone comes back; the others never stop",
        "the steps in flight", Role.WORKER),
    Row(Topology.SERVED, "a ps", f"all ps and the chief come back, {_CHECKPOINT}; workers are "
        "kept", _INTERVAL, Role.PS, (Role.PS, Role.CHIEF)),
    Row(Topology.SERVED, "the chief", f"the chief comes back, {_CHECKPOINT}; ps and workers are "
        "kept", _INTERVAL, Role.CHIEF),
    Row(Topology.GANG, "the chief", f"all come back together, {_CHECKPOINT}", _INTERVAL,
        Role.CHIEF, _TOGETHER),
    Row(Topology.GANG, "a worker", f"all come back together, {_CHECKPOINT}; a stale peer is "
        "ended from outside", _INTERVAL, Role.WORKER, _TOGETHER),
    Row(Topology.ALONE, "the process", f"it comes back, {_CHECKPOINT}", _INTERVAL, Role.CHIEF),
    Row(Topology.ANY, "the evaluator", "it comes back alone; the training never stops",
        "nothing", Role.EVALUATOR),
    Row(Topology.ANY, "an `input`", "it comes back alone; others, if there are, bring what "
        "is read meanwhile", "some records come again, others later", Role.INPUT),
    Row(Topology.ANY, "the dispatcher", "all but the ps and the evaluator come back, "
        f"{_CHECKPOINT}", _INTERVAL,
        Role.DISPATCHER, (Role.CHIEF, Role.WORKER, Role.INPUT)),
    Row(Topology.ANY, "a replica that is preempted (SIGTERM, eviction, spot notice)",
        "it saves a checkpoint, leaves, and resumes elsewhere", "nothing"),
    Row(Topology.ANY, "a replica that is alive and makes no progress",
        "it is found by its heartbeat or its step, ended, and treated as lost",
        "`deadlines.progress_timeout` (60 s)"),
    Row(Topology.ANY, "a node that falls silent, nothing closed", "the chief's own watchdog "
        "ends it, or the one outside does; what is silent is replaced, never waited for",
        "`deadlines.progress_timeout` (60 s)"),
    Row(Topology.ANY, "Airflow's worker, scheduler or triggerer", "training goes on; the task "
        "adopts it when it is back", "nothing"),
    Row(Topology.ANY, "the object store, away or slow", "training goes on; uploads wait and "
        "catch up; past a deadline the job fails and names every local checkpoint", "nothing"),
    Row(Topology.ANY, "the whole machine or cluster", "the retry resumes from the last whole "
        "checkpoint", _INTERVAL),
)
# fmt: on


def say_unresponsive(names: Sequence[str]) -> str:
    """A sentence for people that names unresponsive replicas; programs use the message."""
    return f"{' and '.join(names)} {'does' if len(names) == 1 else 'do'} not answer"


def replicas_to_restart(job: Job, lost: Collection[ReplicaName]) -> frozenset[ReplicaName]:
    """The replicas to restart if ``lost`` failed; those that still run are ended first."""
    names = list(job.names())
    back = set(lost)
    for name in lost:
        brings = _row_of(job, name.role).brings
        back.update(each for each in names if each.role in brings)
    return frozenset(back)


def _row_of(job: Job, role: Role) -> Row:
    formations = (Topology.of(job), Topology.ANY)
    return next(row for row in MATRIX if row.role is role and row.formation in formations)
