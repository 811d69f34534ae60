"""Replica groups that are older than their start deadline when another process follows them.

Several processes follow a training one after the other: a triggerer is upgraded, a task is retried.
What the next one decides may depend on the replica group alone.
"""

import pytest

from aerotrain.contract.status import State
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
        before = old.uids()
        old.followed().become(statuses.exited(0))
        assert old.end().state is State.SUCCEEDED
        assert old.uids() == before

    def test_the_controller_decides_nothing_before_all_pods_were_seen(
        self, old: ImaginedGroup
    ) -> None:
        old.double.fail(503, verb="list", resource="pods", times=3)
        old.followed().become(statuses.exited(0))
        assert old.end().state is State.SUCCEEDED

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
