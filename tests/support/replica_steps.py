"""Run some steps of jobs in this process, one job after another, and write their results to files.

``python replica_steps.py OUTPUT DEVICES STEPS JOB STEPS JOB…``: the folder of a NumPy archive for
each job, ``0.npz`` and so on; how many virtual CPU devices to make; and for each job how many steps
to run, and the job in JSON. All jobs have the same replicas. If these have a cluster, the
launcher's environment variables describe it.
"""

import os
import sys
from pathlib import Path

import numpy as np
import tensorflow as tf
from tensorflow.python.distribute.collective_all_reduce_strategy import CollectiveAllReduceExtended

from aerotrain.contract.environment import set_tensorflow_variables
from aerotrain.contract.job import Job
from aerotrain.contract.training import TrainArguments
from aerotrain.data.dataset import load_dataset
from aerotrain.training.input.batches import batch_spec
from aerotrain.training.input_pipeline import InputPipeline
from aerotrain.training.model.code import UserCode
from aerotrain.training.model.keras_adapter import KERAS
from aerotrain.training.strategies import ENGINES


def main(output: str, devices: str, *words: str) -> None:
    if "AEROTRAIN_CLUSTER" in os.environ:
        set_tensorflow_variables(os.environ)
    [cpu] = tf.config.list_physical_devices("CPU")
    logical = [tf.config.LogicalDeviceConfiguration()] * int(devices)
    tf.config.set_logical_device_configuration(cpu, logical)
    for number, (steps, text) in enumerate(zip(words[::2], words[1::2], strict=True)):
        job = Job.from_json(text)
        if str(job.code) not in sys.path:
            sys.path.insert(0, str(job.code))
        scratch = Path.cwd() / f"job-{number}"
        scratch.mkdir()
        print(f"job {number}: {job.strategy} with {job.arguments}", flush=True)
        np.savez(f"{output}/{number}.npz", **run(job, scratch, int(steps)))
        _reset()


def run(job: Job, scratch: Path, steps: int) -> dict[str, np.ndarray]:
    """The metrics after each execution, and the final weights and the counters."""
    arguments = TrainArguments.from_dict(job.arguments)
    dataset = load_dataset(arguments.data)
    code = UserCode.load(arguments.model)
    feed = InputPipeline(job=job, arguments=arguments, dataset=dataset, code=code, scratch=scratch)
    engine = ENGINES[job.strategy]
    distribution = engine.build(arguments)
    with distribution.scope():
        KERAS.seed(arguments.seed)
        spec = batch_spec(dataset.schema, code.transform)
        model = code.build(arguments.all_hparams, spec)
        counter = tf.Variable(
            0, dtype=tf.int64, aggregation=tf.VariableAggregation.ONLY_FIRST_REPLICA
        )
        step = engine.step(model, counter, spec)
    with feed.caching_shards():
        step_runner = engine.step_runner(distribution, step, feed, 0)
        results = [step.metrics.results(ran.sums) for ran in step_runner.run(steps)]
    with distribution.scope():
        model.optimizer.finalize_variable_values(model.trainable_variables)
    weights = {f"weight_{index}": each for index, each in enumerate(model.get_weights())}
    logs = {name: [each[name] for each in results] for name in results[0]}
    counts = {"counter": counter.numpy(), "iterations": model.optimizer.iterations.numpy()}
    distribution.wait_for_all()
    return {**logs, **weights, **counts}


def _reset() -> None:
    """Prepare for another strategy of several replicas in this process.

    TensorFlow expects one for the life of a process. Its own tests create several in this way: each
    has other keys for its collectives, and uses the server that the first has started.
    """
    for kind in (tf.distribute.MirroredStrategy, tf.distribute.MultiWorkerMirroredStrategy):
        kind._collective_key_base += 100_000
    CollectiveAllReduceExtended._std_server_started = True


if __name__ == "__main__":
    main(*sys.argv[1:])
