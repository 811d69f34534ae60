"""Run some steps of a job in this process, and write their results to a file.

``python replica_steps.py JOB OUTPUT DEVICES STEPS``: a job in JSON; the name of a NumPy archive;
how many virtual CPU devices to make; how many steps to run. If the job has a cluster, the
launcher's environment variables describe it.
"""

import os
import sys
from pathlib import Path

import numpy as np
import tensorflow as tf

from aerotrain.contract.environment import set_tensorflow_variables
from aerotrain.contract.job import Job
from aerotrain.contract.steps import TrainArguments
from aerotrain.data.dataset import load_dataset
from aerotrain.training.distribution import wait_for_all
from aerotrain.training.input.batches import batch_spec
from aerotrain.training.input_pipeline import InputPipeline
from aerotrain.training.model.code import UserCode
from aerotrain.training.model.keras_adapter import KERAS
from aerotrain.training.strategies import ENGINES


def main(text: str, output: str, devices: str, steps: str) -> None:
    job = Job.from_json(text)
    if "AEROTRAIN_CLUSTER" in os.environ:
        set_tensorflow_variables(os.environ)
    sys.path.insert(0, str(job.code))
    [cpu] = tf.config.list_physical_devices("CPU")
    logical = [tf.config.LogicalDeviceConfiguration()] * int(devices)
    tf.config.set_logical_device_configuration(cpu, logical)
    arguments = TrainArguments.of(job.arguments)
    dataset = load_dataset(arguments.data)
    code = UserCode.load(arguments.model)
    feed = InputPipeline(
        job=job, arguments=arguments, dataset=dataset, code=code, scratch=Path.cwd()
    )
    engine = ENGINES[job.strategy]
    distribution = engine.build(arguments)
    with distribution.scope():
        KERAS.seed(arguments.seed)
        spec = batch_spec(dataset.schema, code.transform)
        model = code.build({}, spec)
        counter = tf.Variable(
            0, dtype=tf.int64, aggregation=tf.VariableAggregation.ONLY_FIRST_REPLICA
        )
        step = engine.step(model, counter, spec)
    step_runner = engine.step_runner(distribution, step, feed, 0)
    results = [step.metrics.results(ran.sums) for ran in step_runner.run(int(steps))]
    weights = {f"weight_{index}": each for index, each in enumerate(model.get_weights())}
    logs = {name: [each[name] for each in results] for name in results[0]}
    counts = {"counter": counter.numpy(), "iterations": model.optimizer.iterations.numpy()}
    np.savez(output, **logs, **weights, **counts)
    wait_for_all(distribution)


if __name__ == "__main__":
    main(*sys.argv[1:])
