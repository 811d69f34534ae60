"""Milliseconds of one step on one device: ``python -m benchmarks.shares``, in a job's replica.

The same steps are timed in three ways: with records that are read, parsed and shuffled; with one
batch in memory; and with one batch and one step per execution. The differences are the cost of
input and of Python. With an argument, a number of seconds, only the first is timed, for so long.
"""

import json
import os
import sys
import time
from pathlib import Path

import tensorflow as tf

from aerotrain.contract.training import TrainArguments
from aerotrain.data.dataset import load_dataset
from aerotrain.replica import Replica
from aerotrain.training.input.batches import batch_spec
from aerotrain.training.input_pipeline import InputPipeline
from aerotrain.training.model.code import UserCode
from aerotrain.training.step_runner import LocalStepRunner
from aerotrain.training.strategies import ENGINES

WARM_STEPS = 100
STEPS = 600


def main() -> None:
    replica = Replica.from_environment(os.environ, Path.cwd())
    sys.path.insert(0, str(replica.job.code))
    arguments = TrainArguments.of(replica.job.arguments)
    dataset = load_dataset(arguments.data)
    code = UserCode.load(arguments.model)
    feed = InputPipeline(
        job=replica.job,
        arguments=arguments,
        dataset=dataset,
        code=code,
        scratch=replica.scratch,
    )
    engine = ENGINES["one_device"]
    distribution = engine.build(arguments)
    spec = batch_spec(dataset.schema, code.transform)
    with distribution.scope():
        model = code.build(arguments.all_hparams, spec)
        step = engine.step(model, tf.Variable(0, dtype=tf.int64), spec)
    read = feed.local(0)
    at_hand = read.take(1).cache().repeat().prefetch(1)
    many = arguments.steps_of_execution
    if sys.argv[1:]:
        step_runner = LocalStepRunner(distribution, step, read, many)
        print(json.dumps({"read": milliseconds(step_runner, float(sys.argv[1]))}), flush=True)
        return
    taken = {
        name: milliseconds(LocalStepRunner(distribution, step, batches, per_execution))
        for name, batches, per_execution in (
            ("read", read, many),
            ("at_hand", at_hand, many),
            ("one_by_one", at_hand, 1),
        )
    }
    print(json.dumps(taken), flush=True)


def milliseconds(step_runner: LocalStepRunner, seconds: float = 0.0) -> float:
    """Milliseconds of one warm step; over at least ``STEPS`` steps and ``seconds``."""
    for _ in step_runner.run(WARM_STEPS):
        pass
    begin, steps = time.monotonic(), 0
    while not steps or time.monotonic() < begin + seconds:
        *_, last = step_runner.run(STEPS)
        last.sums[0].numpy()  # an execution is done when its values are available
        steps += STEPS
    return 1000 * (time.monotonic() - begin) / steps


if __name__ == "__main__":
    main()
