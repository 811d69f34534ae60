"""What is known of a set's replicas, from the pods that the API has shown.

A follower knows nothing at first, and that is not the same as a set without pods: nothing is
decided before all pods were seen once.
"""

from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any

from aerotrain.contract.job import ReplicaName
from aerotrain.contract.status import Observation, State
from aerotrain_airflow.backends.kubernetes.address import generation_of
from aerotrain_airflow.backends.kubernetes.identity import is_owned_by, uid_of
from aerotrain_airflow.backends.kubernetes.states import created_at, observe_pod, started_at

Manifest = Mapping[str, Any]

_MISSING = observe_pod(None)
_ORDERED = Observation(state=State.PENDING, reason="waits for its pod to be made")
_NEVER_SEEN = -1


@dataclass(frozen=True, kw_only=True)
class ReplicaStatus:
    """One replica: what is seen of it, and since when, as times of ``time.time()``.

    ``created`` is when its pod was made, or was ordered; ``started`` is when its container began
    to run, and None as long as it has not. ``uid`` and ``generation`` are its pod's.
    """

    seen: Observation
    created: float
    started: float | None = None
    uid: str = ""
    generation: int = 0
    node: str = ""

    @property
    def observation(self) -> Observation:
        """What the controller is to know of it; what started once does not start late."""
        waits = self.seen.state is State.PENDING and self.started is None
        return replace(
            self.seen,
            restarts=None if self.generation == _NEVER_SEEN else self.generation,
            node=self.node,
            waits_since=self.created if waits else None,
        )


@dataclass(frozen=True)
class Change:
    """What a pod has shown of its replica; ``before`` is None where that was not known."""

    name: ReplicaName
    before: ReplicaStatus | None
    now: ReplicaStatus


class ObservedSet:
    """The replicas of a set, each as the newest pod of its ``generation`` shows it.

    ``pods`` has the name of each replica's pod. Only those are believed that the owner with
    this ``uid`` owns.
    """

    def __init__(
        self,
        pods: Mapping[str, ReplicaName],
        uid: str,
        generation: Callable[[ReplicaName], int],
    ) -> None:
        self._pods = pods
        self._uid = uid
        self._generation = generation
        self._made: dict[ReplicaName, float] = {}  # when a pod of ours was; infinite while it is
        #: What is known of each replica that was seen, or that is missing.
        self.replicas: dict[ReplicaName, ReplicaStatus] = {}
        #: When the last look at all pods began; None where there was none as yet.
        self.looked: float | None = None

    @property
    def seen(self) -> dict[ReplicaName, Observation]:
        """The states of the replicas: of all, where all were looked at."""
        return {name: each.observation for name, each in self.replicas.items()}

    def is_own(self, pod: Manifest) -> bool:
        """Whether it is a pod of this set, of whatever generation."""
        return pod["metadata"]["name"] in self._pods and is_owned_by(pod, self._uid)

    def take(self, pod: Manifest, *, gone: bool = False) -> Change | None:
        """Take in a pod as it is now, or as it was before it was ``gone``.

        None where it is no pod of this set, or one of an earlier generation, which is on its way
        out. The first end of a pod is the true one: what comes after it is its removal.
        """
        if not self.is_own(pod):
            return None
        name, generation = self._pods[pod["metadata"]["name"]], generation_of(pod)
        before = self.replicas.get(name)
        if generation < self._generation(name):
            return None
        if before is not None and before.seen.state.ended and generation <= before.generation:
            return Change(name, before, before)
        seen, uid = observe_pod(pod), uid_of(pod)
        if gone and not seen.state.ended:
            seen = observe_pod(None)
        known = before.started if before is not None and before.uid == uid else None
        now = ReplicaStatus(
            seen=seen,
            created=created_at(pod),
            started=started_at(pod) or known,
            uid=uid,
            generation=generation,
            node=pod["spec"].get("nodeName", ""),
        )
        self.replicas[name] = now
        return Change(name, before, now)

    def looked_at_all(self, there: Collection[ReplicaName], began: float) -> None:
        """All pods were taken in, by a look that ``began`` then: they are of those ``there``.

        What is just being made, or was made after that, is not missing.
        """
        for name in set(self._pods.values()) - set(there):
            before = self.replicas.get(name)
            if self._made.get(name, 0.0) >= began or (before and before.seen.state.ended):
                continue
            last = before or ReplicaStatus(seen=_MISSING, created=began, generation=_NEVER_SEEN)
            self.replicas[name] = replace(last, seen=_MISSING)
        self.looked = began

    def making(self, counts: Mapping[ReplicaName, int], now: float) -> None:
        """New pods are made for these, from ``now`` on, and are not missed meanwhile."""
        for name, count in counts.items():
            self._made[name] = float("inf")
            self.replicas[name] = ReplicaStatus(seen=_ORDERED, created=now, generation=count)

    def made(self, names: Iterable[ReplicaName], now: float) -> None:
        """They are there: a look that begins later has to find them."""
        self._made.update(dict.fromkeys(names, now))
