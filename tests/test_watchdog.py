"""The watchdog: it ends replicas without progress, names unresponsive ones, and pauses."""

import socket
from contextlib import ExitStack

import pytest

from aerotrain.contract.replicas import ReplicaName, Role
from aerotrain.training.background.services import Watchdog, answers, peers_of
from support.training_fixtures import read_until, start_python, suspend

pytestmark = pytest.mark.process


class World:
    """A clock, a watchdog that uses it, and its messages when it ended the replica."""

    def __init__(self, peers=None):
        self.now = 0.0
        self.said = []
        self.excused = False
        self.watchdog = Watchdog(
            progress_timeout=60,
            start_timeout=600,
            peers=peers or {},
            end=lambda why, _: self.said.append(why),
            excused=lambda: self.excused,
            clock=lambda: self.now,
        )

    def wait(self, seconds):
        for _ in range(seconds):
            self.now += 1
            self.watchdog.check()

    def execute(self, seconds, step=0, steps=1):
        """An execution of so many steps that takes so long."""
        with self.watchdog.watching(step) as ended:
            self.wait(seconds)
            ended(steps)


def test_a_replica_without_progress_within_its_timeout_is_ended():
    world = World()
    world.execute(300)  # the first: TensorFlow compiles
    world.execute(1)
    assert world.said == []
    world.execute(61, step=120)
    assert len(world.said) == 1
    assert world.said[0].startswith("no progress for 61 s after step 120, where 60 s are allowed")


def test_an_execution_of_a_worker_that_was_lost_has_no_steps():
    world = World()
    world.execute(300)
    world.execute(1)
    world.execute(5, steps=0)
    world.execute(61)
    assert len(world.said) == 1


def test_slow_executions_have_a_longer_timeout():
    world = World()
    for seconds in (100, 100, 50, 140):
        world.execute(seconds)
    assert world.said == []
    world.execute(421)
    assert len(world.said) == 1


def test_the_timeout_is_that_of_the_longest_execution_of_slow_steps():
    world = World()
    world.execute(110, steps=50)  # with the time of compilation
    with world.watchdog.watching(50):  # until the replica is idle: it runs no step
        world.wait(1)
    for seconds, steps in ((20, 10), (100, 50), (20, 10)):  # the last of an epoch is shorter
        world.execute(seconds, steps=steps)
    assert world.said == []
    world.execute(301, steps=50)
    assert len(world.said) == 1


def test_time_during_which_the_process_was_suspended_does_not_count():
    world = World()
    world.execute(1)
    with world.watchdog.watching(7):
        world.wait(10)
        world.now += 3600
        world.watchdog.check()
        world.wait(49)
        assert world.said == []
        world.wait(2)
        assert len(world.said) == 1


def test_waiting_for_the_store_or_for_disk_space_does_not_count():
    world = World()
    world.execute(1)
    with world.watchdog.watching(7):
        world.excused = True
        world.wait(3600)
        world.excused = False
        world.wait(60)
        assert world.said == []
        world.wait(1)
        assert len(world.said) == 1


SERVER = (
    "import tensorflow as tf\n"
    "server = tf.distribute.Server({'worker': ['127.0.0.1:%d']}, protocol='grpc')\n"
    "print('serves', flush=True)\n"
    "server.join()\n"
)


def test_the_watchdog_distinguishes_serving_replicas_from_stopped_or_ended_ones(tmp_path):
    with socket.socket() as held:
        held.bind(("127.0.0.1", 0))
        port = held.getsockname()[1]
    address = f"127.0.0.1:{port}"
    with ExitStack() as stack:
        process = stack.enter_context(start_python(["-c", SERVER % port], tmp_path))
        stack.callback(process.kill)
        read_until(process, "serves")
        assert answers(address)
        suspend(process)
        assert not answers(address, seconds=0.5)
        world = World({"worker-0": address})
        world.execute(1)
        world.execute(61)
        assert "worker-0 does not answer; this replica ends itself, and continues" in world.said[0]
        process.kill()
        process.wait(30)
        assert not answers(address)


def test_the_peers_of_a_replica_are_all_others_of_its_cluster():
    cluster = {"chief": ["c:1"], "worker": ["a:1", "b:1"], "ps": ["p:1"]}
    own = ReplicaName(Role.WORKER, 1)
    assert peers_of(cluster, own) == {"chief": "c:1", "worker-0": "a:1", "ps-0": "p:1"}
    assert peers_of({}, own) == {}
