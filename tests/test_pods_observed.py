"""What the states of its pods say about the replicas of a group: pure."""

from typing import Any

import pytest

from aerotrain.contract.replicas import ReplicaName, Role
from aerotrain.contract.status import State
from aerotrain_airflow.kubernetes.identity import RESTARTS, Handle
from aerotrain_airflow.kubernetes.observed import ObservedGroup
from support.kubernetes_double import statuses
from support.kubernetes_double.objects import timestamp
from support.kubernetes_double.statuses import Edit

CHIEF, WORKER = ReplicaName(Role.CHIEF, 0), ReplicaName(Role.WORKER, 0)
OWNER = "the owner's uid"
CREATED = 1_800_000_000.0


def pod(
    name: ReplicaName, *states: Edit, uid: str = "", restarts: int = 0, created: float = CREATED
) -> dict[str, Any]:
    """A pod as the API returns it."""
    made: dict[str, Any] = {
        "metadata": {
            "name": f"job-{name}",
            "uid": uid or f"{name}/{restarts}",
            "creationTimestamp": timestamp(created),
            "annotations": {RESTARTS: str(restarts)},
            "ownerReferences": [{"kind": "ConfigMap", "name": "job", "uid": OWNER}],
        },
        "spec": {"containers": [{"name": "replica", "image": "image:1"}]},
        "status": {"phase": "Pending"},
    }
    for state in states:
        state(made)
    return made


class Seen(ObservedGroup):
    """A chief and a worker that have restarted as often as ``restarts`` says."""

    def __init__(self, *, is_gated: bool = False) -> None:
        self.restarts = {CHIEF: 0, WORKER: 0}
        handle = Handle("default", "job", "try-1", OWNER)
        self.now = CREATED
        count = self.restarts.__getitem__
        super().__init__(self.restarts, handle, count, is_gated=is_gated, clock=lambda: self.now)

    def lists(self, began: float, *pods: dict[str, Any]) -> None:
        """Take a list that was begun so many seconds after ``CREATED``."""
        self.now = max(self.now, CREATED + began)
        for each in pods:
            self.take(each)
        self.looked_at_all(CREATED + began)

    def states(self) -> list[str]:
        return [self.seen[name].state.value for name in (CHIEF, WORKER) if name in self.seen]


@pytest.fixture
def seen() -> Seen:
    return Seen()


def test_before_the_first_list_no_pod_counts_as_missing(seen: Seen) -> None:
    assert (seen.states(), seen.looked) == ([], None)
    seen.take(pod(CHIEF, statuses.running()))
    assert (seen.states(), seen.looked) == (["running"], None)
    seen.lists(5.0, pod(CHIEF, statuses.running()))
    assert (seen.states(), seen.looked) == (["running", "lost"], CREATED + 5.0)


def test_the_time_in_a_queue_is_no_time_of_waiting_to_start() -> None:
    seen, next_follower = Seen(is_gated=True), Seen(is_gated=True)
    seen.take(pod(CHIEF, statuses.gated()))
    assert (seen.seen[CHIEF].state, seen.seen[CHIEF].waits_since) == (State.PENDING, None)
    admitted = pod(CHIEF, statuses.unschedulable())
    for later in (5_000, 6_000):
        seen.now = CREATED + later
        seen.take(admitted)
        assert seen.seen[CHIEF].waits_since == CREATED + 5_000
    next_follower.now = CREATED + 7_000
    next_follower.take(admitted)
    assert next_follower.seen[CHIEF].waits_since == CREATED + 7_000


def test_the_times_of_waiting_and_starting_are_those_of_the_pod(seen: Seen) -> None:
    seen.take(pod(CHIEF))
    assert seen.seen[CHIEF].waits_since == CREATED
    running = pod(CHIEF, statuses.running())
    started = running["status"]["containerStatuses"][0]["state"]["running"]
    started["startedAt"] = timestamp(CREATED + 40)
    seen.take(running)
    assert seen.replicas[CHIEF].started == CREATED + 40
    running["status"]["containerStatuses"][0]["state"] = {"waiting": {"reason": "Whatever"}}
    seen.take(running)
    assert seen.seen[CHIEF].state is State.PENDING
    assert seen.seen[CHIEF].waits_since is None


def test_a_container_that_could_not_be_started_has_no_start_time(seen: Seen) -> None:
    failed = statuses.terminated(128, "StartError", "no such file")
    seen.take(pod(CHIEF, statuses.scheduled(), failed))
    assert seen.replicas[CHIEF].started is None


def test_the_first_observed_end_is_kept_until_the_replica_restarts(seen: Seen) -> None:
    seen.lists(1.0, pod(CHIEF, statuses.running()), pod(WORKER, statuses.exited(139)))
    seen.take(pod(WORKER, statuses.exited(0)), gone=True)
    assert seen.seen[WORKER].exit_code == 139
    seen.restarts[WORKER] = 1
    assert seen.take(pod(WORKER, statuses.running())) is None
    assert seen.seen[WORKER].restarts == 0
    seen.take(pod(WORKER, statuses.running(), restarts=1))
    assert (seen.states(), seen.seen[WORKER].restarts) == (["running", "running"], 1)


def test_a_pod_that_is_newer_than_a_list_does_not_count_as_missing(seen: Seen) -> None:
    ended = pod(WORKER, statuses.exited(139))
    seen.lists(1.0, pod(CHIEF, statuses.running()), ended)
    seen.restarts[WORKER] = 1
    seen.now = CREATED + 12
    seen.take(pod(WORKER, restarts=1))  # the answer to its creation
    assert (seen.states(), seen.seen[WORKER].waits_since) == (["running", "pending"], CREATED)
    seen.lists(11.5, pod(CHIEF, statuses.running()), ended)  # requested before, answered after
    assert seen.states() == ["running", "pending"]
    seen.lists(13.0, pod(CHIEF, statuses.running()))
    assert seen.states() == ["running", "lost"]


def test_a_pod_older_than_the_last_recorded_restart_has_no_restart_count(
    seen: Seen,
) -> None:
    seen.restarts[WORKER] = 2
    seen.lists(1.0, pod(CHIEF, statuses.running()), pod(WORKER, statuses.running(), restarts=1))
    assert seen.seen[WORKER].restarts is None


def test_the_node_of_a_replica_is_that_of_its_pod(seen: Seen) -> None:
    placed = pod(CHIEF, statuses.running())
    placed["spec"]["nodeName"] = "node-3"
    seen.take(placed)
    seen.take(placed, gone=True)
    assert (seen.states(), seen.seen[CHIEF].node) == (["lost"], "node-3")


@pytest.mark.parametrize(
    "change",
    [
        {"name": "job-chief-copy"},
        {"ownerReferences": [{"kind": "ConfigMap", "name": "job", "uid": "of an earlier set"}]},
        {"ownerReferences": []},
        {"ownerReferences": None},
    ],
)
def test_a_pod_belongs_to_a_group_by_its_name_and_owner_and_not_by_labels(
    seen: Seen, change: dict[str, Any]
) -> None:
    another = pod(CHIEF, statuses.exited(0))
    another["metadata"] |= {"labels": {"aerotrain/role": "chief"}, **change}
    assert seen.replica_of(another) is None
    assert seen.take(another) is None
    assert seen.states() == []
