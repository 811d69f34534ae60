"""The time of steps by what it was spent on: input, computing, communication."""

import time
from types import SimpleNamespace

import keras
import numpy as np
import pytest
import tensorflow as tf

from aerotrain.contract.replicas import ReplicaName, Role
from aerotrain.contract.status import ProcessStatus, ReplicaStatus, StepTime
from aerotrain.contract.training import TrainArguments
from aerotrain.training.hooks.report import StepTimes
from aerotrain.training.step_runner import LocalStepRunner, Spent
from aerotrain.training.steps.step import TrainStep
from aerotrain.training.strategies import ENGINES


def times_of(*spent):
    """The hook after those executions, and what it reports by replica."""
    status = SimpleNamespace(step_times={}, ready=lambda: None)
    replica = SimpleNamespace(name=ReplicaName(Role.CHIEF, 0))
    services = SimpleNamespace(
        status_writer=status, event_writer=SimpleNamespace(note=lambda *_, **__: None)
    )
    hook = StepTimes(SimpleNamespace(replica=replica, services=services))
    for each in spent:
        hook.on_execution(SimpleNamespace(spent=(each,) if each else (), step=1))
    return hook, status.step_times


def test_what_is_neither_input_nor_computing_is_communication():
    hook, times = times_of(Spent(10, 1.0, 0.1, 0.5), Spent(30, 3.0, 0.3, 1.5), None)
    assert times == {"chief": StepTime(seconds=0.1, input=0.01, communication=pytest.approx(0.04))}
    assert hook.shares() == {
        "input_wait": pytest.approx(0.1),
        "communication": pytest.approx(0.4),
    }


def test_each_worker_of_a_coordinator_has_a_time_and_communication_may_be_unknown():
    hook, times = times_of(Spent(10, 1.0, 0.1, 0.8, worker=1), Spent(10, 2.0, 0.2, worker=0))
    assert {name: each.seconds for name, each in times.items()} == {
        "worker-1": 0.1,
        "worker-0": 0.2,
    }
    assert times["worker-0"].communication is None
    assert hook.shares() == {"input_wait": pytest.approx(0.1)}
    assert times_of()[0].shares() == {}


def test_a_status_has_the_times_of_steps_and_ignores_fields_of_a_later_version():
    process = ProcessStatus(began=1.0, step_times={"worker-0": StepTime(seconds=0.2, input=0.1)})
    content = ReplicaStatus((process,)).to_json()
    assert ReplicaStatus.from_json(content).processes == (process,)
    later = content.replace(b'"input"', b'"of a later version": 1, "input"')
    assert ReplicaStatus.from_json(later).processes == (process,)


def test_the_wait_for_batches_is_measured_in_each_execution():
    def read(rows):
        time.sleep(0.02)  # what is measured
        return rows

    rows = np.ones((8, 3), "float32")
    batches = tf.data.Dataset.from_tensors(rows).repeat()
    batches = batches.map(
        lambda each: tf.ensure_shape(tf.numpy_function(read, [each], tf.float32), (8, 3))
    ).map(lambda each: (each, each[:, :1]))
    distribution = ENGINES["one_device"].build(TrainArguments(model="here", data=""))
    with distribution.scope():
        model = keras.Sequential([keras.Input((3,)), keras.layers.Dense(1)])
        model.compile("sgd", "mse")
        step = TrainStep(model, tf.Variable(0, dtype=tf.int64))
    _, second = LocalStepRunner(distribution, step, batches, per_execution=20).run(40)
    [spent] = second.spent
    assert spent.steps == 20
    # Of 0.4 s: a batch is read while the step before it is computed, for longer on a busy machine.
    assert 0.3 < spent.input <= spent.seconds
    assert spent.computing is None, "nothing is exchanged"
