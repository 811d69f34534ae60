"""Replica groups that are older than their start deadline when another process follows them.

Several processes follow a training one after the other: a triggerer is upgraded, a task is retried.
What the next one decides may depend on the replica group alone.
"""

import time

import pytest

from aerotrain.contract.status import State
from aerotrain_airflow.kubernetes.states import created_at
from support.imagined_groups import ImaginedGroup
from support.kubernetes_double import KubernetesDouble, statuses

HOUR = 3600.0
SERVED = [{"role": "chief"}, {"role": "worker", "count": 2}, {"role": "ps"}]


@pytest.mark.process
class TestAnHourOld:
    """A group of imagined pods that was made an hour ago, with a start deadline of 600 s."""

    @pytest.fixture
    def old(self, own: KubernetesDouble) -> ImaginedGroup:
        made = ImaginedGroup(own, replicas=SERVED)
        made.age(HOUR)
        return made

    def test_a_new_follower_does_not_replace_its_pods(self, old: ImaginedGroup) -> None:
        old.double.fail(503, verb="list", resource="pods", times=3)
        before = old.uids()
        old.followed().become(statuses.exited(0))
        assert old.end().state is State.SUCCEEDED
        assert old.uids() == before

    def test_a_restarted_replica_has_the_whole_start_deadline(self, old: ImaginedGroup) -> None:
        old.double.imagine("job-worker-1", statuses.unschedulable(), old.namespace)
        old.double.delete("pods", "job-worker-1", old.namespace)
        old.followed().until_restarted(1, "worker-1")
        old.follow()  # another follower, which finds it waiting
        old.become(statuses.running(), "worker-1")
        old.become(statuses.exited(0))
        assert [each.state for each in old.ends()] == [State.SUCCEEDED] * 2

    def test_a_replica_that_has_waited_beyond_its_start_deadline_ends_it(
        self, own: KubernetesDouble
    ) -> None:
        old = ImaginedGroup(own, {"worker-1": statuses.unschedulable()}, replicas=SERVED)
        old.age(HOUR)
        ended = old.followed().end()
        assert ended.state is State.LOST
        assert "1 of 4 replicas of job did not start within 600 s" in ended.reason
        assert "worker-1 waits because no node can take it" in ended.reason


@pytest.mark.process
def test_a_deadline_that_passes_during_an_api_outage_is_checked_against_the_pods_after_it(
    own: KubernetesDouble,
) -> None:
    young = ImaginedGroup(own, {"chief": statuses.unschedulable()}, deadlines={"start": 3})
    young.followed()
    deadline = created_at(young.pod()) + 3
    with own.away():
        young.become(statuses.running())
        own.wait_for(lambda: time.time() > deadline + 1, "the deadline")
    young.become(statuses.exited(0))
    assert young.end().state is State.SUCCEEDED
