"""Train a model: ``run`` is the step of a job, ``main`` the same by hand.

By hand, on one device, with no Airflow near::

    python -m aerotrain.train --model digits --code dags/models \\
        --data file:///data/digits/datasets/1a2b… --store file:///data/digits
"""

import os
import sys
import tempfile
import time
from argparse import ArgumentParser, Namespace
from collections.abc import Sequence
from dataclasses import fields
from pathlib import Path

from aerotrain.contract.errors import AerotrainError, ExitCode
from aerotrain.contract.job import Job, ReplicaName, Role
from aerotrain.contract.steps import TrainArguments
from aerotrain.contract.strategy import STRATEGIES
from aerotrain.replica import Replica, live


def run(replica: Replica) -> str | None:
    """Train as the chief, or serve the chief as a worker or parameter server.

    Returns:
        The URL of the trained model's manifest.
    """
    # Each role loads only what it needs: Keras takes seconds, and memory that ps never use.
    if replica.name.role in (Role.WORKER, Role.PS):
        from aerotrain.training.servers import serve

        serve(replica)
        return None
    from aerotrain.training.chief import train

    return train(replica)


def main(words: Sequence[str] | None = None) -> None:
    """Train in this process as the command line says, and exit as a replica does."""
    options = _parser().parse_args(words)
    try:
        job = _job(options)
    except AerotrainError as error:
        print(f"error: {error}", flush=True)
        sys.exit(ExitCode.FINAL)
    with tempfile.TemporaryDirectory(prefix="aerotrain-") as scratch:
        name = ReplicaName(Role.CHIEF, 0)
        code = live(Replica(job=job, name=name, attempt="by-hand", scratch=Path(scratch)), run)
    if code is ExitCode.OK:
        print(f"the trained model is {job.prefix}/model.json", flush=True)
    sys.exit(code)


def _job(options: Namespace) -> Job:
    arguments = {
        each.name: getattr(options, each.name)
        for each in fields(TrainArguments)
        if each.name != "hparams"
    }
    TrainArguments.of(arguments)
    if options.learning_rate is not None:
        arguments["hparams"] = {"learning_rate": options.learning_rate}
    return Job(
        name="train",
        module="aerotrain.train",
        store=options.store,
        run=options.run,
        task="train",
        strategy=options.strategy,
        code=str(Path(options.code).resolve()),
        arguments=arguments,
    )


def _parser() -> ArgumentParser:
    defaults = TrainArguments(model="", data="")
    alone = [name for name, rules in STRATEGIES.items() if not rules.in_cluster]
    stamp = time.strftime("by-hand-%Y%m%dT%H%M%S")
    parser = ArgumentParser(prog="python -m aerotrain.train", description="Train on one machine.")
    parser.add_argument("--model", required=True, help="module with build_model, in --code")
    parser.add_argument("--code", default=os.curdir, help="folder that holds the module")
    parser.add_argument("--data", required=True, help="URL of the prepared data set")
    parser.add_argument("--store", required=True, help="URL under which the output goes")
    parser.add_argument("--run", default=stamp, help="name of this run; the same one goes on")
    parser.add_argument("--strategy", choices=alone, default="one_device")
    for each in fields(TrainArguments):
        if isinstance(value := getattr(defaults, each.name), int | float):
            flag = f"--{each.name.replace('_', '-')}"
            parser.add_argument(flag, type=type(value), default=value)
    parser.add_argument("--learning-rate", type=float, help="goes to build_model, in hparams")
    return parser


if __name__ == "__main__":
    main()
