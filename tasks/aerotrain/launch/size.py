"""The size of a replica group: how many workers it asks for, and which of them take part.

All of it is in the group's event log: the last event of type RESIZE has the present size.

The workers of ``parameter_server`` are independent: one that is asked for takes part whenever it
runs. Those that are the chief's peers form one cluster, which is fixed while they run. So a worker
that begins later waits outside of it, until all are restarted with a cluster that has it.
"""

import json
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, replace
from typing import ClassVar, Self

from aerotrain.contract.event_log import Event, EventType
from aerotrain.contract.job import Job
from aerotrain.contract.replicas import ReplicaName, Role
from aerotrain.contract.status import State
from aerotrain.contract.validation import CountOrZero, Validated
from aerotrain.launch.restart_policy import Observations

#: Seconds for which members that run wait for one without a node, or that its node does not start.
PLACED_WITHIN, STARTED_WITHIN = 15.0, 120.0

#: Seconds after the start of the first worker outside in which others may start to join with it.
JOIN_TOGETHER = 4.0

#: The kind of a RESIZE event that suspends the group, and of the restarts that a resize makes.
SUSPENDED, RESIZED = "suspended", "resize"
#: That of both if the queue has taken the group's place: what is started waits there.
QUEUED = "queued"


@dataclass(frozen=True, kw_only=True)
class WantedSize(Validated):
    """The size that a user has set for a job: a number of workers, or None for the job's own."""

    TITLE: ClassVar = "the size of a job"

    workers: CountOrZero | None = None
    suspended: bool = False

    def to_json(self) -> bytes:
        return json.dumps(asdict(self)).encode()

    @classmethod
    def from_json(cls, content: bytes) -> Self:
        """Read what ``to_json`` wrote; raises ValueError or SpecError for anything else."""
        return cls.from_dict(json.loads(content))


@dataclass(frozen=True, kw_only=True)
class Size:
    """The size of the group of ``job``, which asks for its first ``workers`` workers.

    The workers ``without`` are asked for and are no members of their chief's cluster. A suspended
    group asks for no replica.
    """

    job: Job
    workers: int
    suspended: bool = False
    without: frozenset[ReplicaName] = frozenset()

    @classmethod
    def of(cls, job: Job, events: Sequence[Event]) -> Self:
        """The present size, by the event log."""
        last = next((each for each in reversed(events) if each.event is EventType.RESIZE), None)
        if last is None:
            return cls(job=job, workers=job.count(Role.WORKER))
        without = frozenset(each for each in job.names() if str(each) in last.without)
        suspended = last.kind == SUSPENDED
        return cls(job=job, workers=last.workers, suspended=suspended, without=without)

    def names(self) -> list[ReplicaName]:
        """The replicas that should run, in the order of the description."""
        if self.suspended:
            return []
        names = self.job.names()
        return [each for each in names if each.role is not Role.WORKER or each.index < self.workers]

    def members(self) -> list[ReplicaName]:
        """The replicas that take part in the cluster, or may."""
        return [each for each in self.names() if each not in self.without]

    def rank(self, name: ReplicaName) -> int:
        """How well the group can do without a replica: 0 not at all, 1 with a change, 2 at once."""
        if name in self.without:
            return 2
        return int(name.role is Role.WORKER and name.index >= self.job.sizes[0])

    def absent(self) -> set[ReplicaName]:
        """The workers without which the chief's peers make up their cluster."""
        return {*self.job.names()} - {*self.members()} if self.job.rules.peers else set()

    def wanted(self, wanted: WantedSize) -> "Size | None":
        """The size that the user wants, the nearest one in the range; None if it is this one.

        Members stay members, and workers that are new begin outside of the cluster.
        """
        sizes = self.job.sizes
        asked = sizes[-1] if wanted.workers is None else wanted.workers
        workers = min(max(asked, sizes[0]), sizes[-1])
        new = replace(self, workers=workers, suspended=wanted.suspended)
        if new == self:
            return None
        if not self.job.rules.peers or self.suspended or wanted.suspended:
            return replace(new, without=frozenset())
        members = {each for each in self.members() if each.role is Role.WORKER} & {*new.names()}
        outside = {each for each in new.names() if each.role is Role.WORKER} - members
        return replace(new, without=frozenset(outside if len(members) >= sizes[0] else ()))

    def to_start(self, before: "Size") -> list[ReplicaName]:
        """The replicas that start, or start again, after that size."""
        starting = {*self.names()} - {*before.names()}
        old, new = {*before.members()}, {*self.members()}
        if self.job.rules.peers and new != old:
            starting |= {each for each in old | new if each.role in (Role.CHIEF, Role.WORKER)}
        return sorted(starting & {*self.names()})

    def to_end(self, seen: Observations) -> frozenset[ReplicaName]:
        """The replicas that run, or wait to, although the group does not ask for them.

        Those that save a checkpoint end before the ps that have its variables.
        """
        asked = {*self.names()}
        alive = {name for name, each in seen.items() if name not in asked and not each.state.ended}
        saving = {Role.CHIEF, *((Role.WORKER,) if self.job.rules.peers else ())}
        return frozenset({each for each in alive if each.role in saving} or alive)

    def without_place(self, seen: Observations) -> dict[ReplicaName, float]:
        """The members that have not started, and when the others go on without them.

        Empty while too few others run.
        """
        if not self.job.rules.peers or len(self.job.sizes) < 2:
            return {}
        members = {name: seen[name] for name in self.members() if name.role is Role.WORKER}
        chief = seen[ReplicaName(Role.CHIEF, 0)]
        running = [each for each in members.values() if each.state is State.RUNNING]
        began = max(each.began or 0.0 for each in (chief, *running))
        waiting = {
            name: max(began, each.waits_since) + (STARTED_WITHIN if each.node else PLACED_WITHIN)
            for name, each in members.items()
            if each.state is State.PENDING and each.waits_since is not None
        }
        is_whole = len(running) + len(waiting) == len(members)
        can_go_on = chief.state is State.RUNNING and len(running) >= self.job.sizes[0]
        return waiting if is_whole and can_go_on else {}

    def joining(self, seen: Observations) -> tuple[list[ReplicaName], float]:
        """The workers outside that run, and when they join; none unless all members run."""
        is_whole = all(seen[each].state is State.RUNNING for each in self.members())
        outside = self.without if is_whole else ()
        found = sorted(each for each in outside if seen[each].state is State.RUNNING)
        return found, min((seen[each].began or 0.0 for each in found), default=0.0) + JOIN_TOGETHER

    def counts_start(self, seen: Observations) -> Observations:
        """The observations of the replicas without which the group cannot go on."""
        workers = {name: each for name, each in seen.items() if name.role is Role.WORKER}
        running = sum(
            each.state is State.RUNNING and name not in self.without
            for name, each in workers.items()
        )
        if len(self.job.sizes) < 2 or running < self.job.sizes[0]:
            return {name: each for name, each in seen.items() if name not in self.without}
        return {name: each for name, each in seen.items() if name not in workers}


def suspended_seconds(events: Iterable[Event], now: float) -> float:
    """For how long the group has been suspended so far."""
    total, since = 0.0, None
    for each in events:
        if each.event is EventType.RESIZE:
            total += each.at - since if since is not None else 0.0
            since = each.at if each.kind == SUSPENDED else None
    return total + (now - since if since is not None else 0.0)
