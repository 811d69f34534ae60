"""The state of a group's replicas, from the pods that the API has returned.

At first a follower has observed nothing, which is not the same as a group without pods: no decision
is made before all pods were observed once.
"""

import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any

from aerotrain.contract.replicas import ReplicaName
from aerotrain.contract.status import Failure, Observation, State
from aerotrain_airflow.kubernetes.identity import (
    Handle,
    is_owned_by,
    pod_name,
    restarts_of,
    uid_of,
    without_restarts,
)
from aerotrain_airflow.kubernetes.states import created_at, is_gated, observe_pod, started_at

Manifest = Mapping[str, Any]

_MISSING = observe_pod(None)


@dataclass(frozen=True, kw_only=True, slots=True)
class ObservedReplica:
    """One replica: what was observed of its pod, and that pod's uid, empty without one.

    ``at`` is the time of the observation, ``started`` when the container started or None, both by
    ``time.time()``.
    """

    seen: Observation
    at: float = 0.0
    started: float | None = None
    uid: str = ""


class ObservedGroup:
    """The replicas ``names`` of the group, each according to its newest pod.

    ``restarts`` gives the restart count of a replica; older pods of it are not used. ``is_gated``
    says that a queue admits the pods; ``clock`` is ``time.time``, or another one.
    """

    def __init__(
        self,
        names: Iterable[ReplicaName],
        handle: Handle,
        restarts: Callable[[ReplicaName], int],
        *,
        is_gated: bool = False,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self._pods = {pod_name(handle.name, name): name for name in names}
        self._uid = handle.uid
        self._restarts = restarts
        self._is_gated = is_gated
        self._clock = clock
        #: The taint by which a node is about to leave; empty if it has none.
        self.notice: Callable[[str], str] = lambda _node: ""
        #: The state of each replica that was observed, or that is missing.
        self.replicas: dict[ReplicaName, ObservedReplica] = {}
        #: When the last list of all pods began; None before the first one.
        self.looked: float | None = None

    @property
    def seen(self) -> dict[ReplicaName, Observation]:
        """The observations of the replicas: of all, once all pods were listed."""
        return {name: each.seen for name, each in self.replicas.items()}

    @property
    def is_queued(self) -> bool:
        """Whether a queue holds the pod of any replica."""
        return any(
            each.seen.state is State.PENDING and not (each.seen.waits_since or each.started)
            for each in self.replicas.values()
        )

    def replica_of(self, pod: Manifest) -> ReplicaName | None:
        """The replica of this group that the pod belongs to, at any restart count."""
        return self._pods.get(without_restarts(pod)) if is_owned_by(pod, self._uid) else None

    def take(self, pod: Manifest, *, gone: bool = False) -> ReplicaName | None:
        """Process a pod in its current state, or in its last state before it was ``gone``.

        Returns its replica; None for a pod of another group, or of an earlier restart count, which
        is being deleted. The first observed end of a pod is final: what follows is its deletion.
        """
        name = self.replica_of(pod)
        if name is None:
            return None
        before, restarts = self.replicas.get(name), restarts_of(pod)
        if restarts < self._restarts(name):
            return None
        last = before.seen if before else None
        if last and last.state.ended and last.restarts is not None and restarts <= last.restarts:
            return name
        known = before if before and before.uid == uid_of(pod) else None
        started = started_at(pod) or (known.started if known else None)
        seen = observe_pod(pod)
        if gone and not seen.state.ended:
            seen = _MISSING
        node = pod["spec"].get("nodeName", "")
        if seen.failure is Failure.PREEMPTED and (taint := self.notice(node)):
            seen = replace(seen, reason=f"{seen.reason}, and its node has the taint {taint}")
        waits = seen.state is State.PENDING and started is None
        self.replicas[name] = ObservedReplica(
            seen=replace(
                seen,
                restarts=restarts,
                node=node,
                waits_since=self._waits_since(pod, known) if waits else None,
                began=started,
            ),
            at=self._clock(),
            started=started,
            uid=uid_of(pod),
        )
        return name

    def _waits_since(self, pod: Manifest, known: ObservedReplica | None) -> float | None:
        """Since when a pod waits to start; time in a queue, which may be hours, does not count.

        The pod does not have the time of its admission: it is when this follower observed it.
        """
        if is_gated(pod):
            return None
        if known is not None:
            return known.seen.waits_since or self._clock()
        return self._clock() if self._is_gated else created_at(pod)

    def on_leaving_nodes(self) -> dict[ReplicaName, str]:
        """The replicas that run on nodes that are about to leave, each with the taint."""
        return {
            name: taint
            for name, each in self.replicas.items()
            if not each.seen.state.ended and (taint := self.notice(each.seen.node))
        }

    def looked_at_all(self, began: float) -> None:
        """Record that all pods were taken from a list that was begun at ``began``.

        The pod of a replica that was not observed since then is missing.
        """
        for name in self._pods.values():
            last = self.replicas.get(name, ObservedReplica(seen=replace(_MISSING, restarts=None)))
            if last.at < began and not last.seen.state.ended:
                seen = replace(_MISSING, restarts=last.seen.restarts, node=last.seen.node)
                last = replace(last, seen=seen)
            self.replicas[name] = last
        self.looked = began
