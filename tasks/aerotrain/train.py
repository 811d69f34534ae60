"""Train a model. ``run`` is the step of a job, ``main`` the command line.

The command line trains on one device, without Airflow::

    python -m aerotrain.train --model digits --code dags/models \\
        --data file:///data/digits/datasets/1a2b… --store file:///data/digits
"""

import json
import os
import sys
import tempfile
import time
from argparse import ArgumentParser, BooleanOptionalAction, Namespace
from collections.abc import Callable, Mapping, Sequence
from dataclasses import fields
from pathlib import Path
from typing import Any

from aerotrain.contract.errors import AerotrainError, ExitCode, SpecError
from aerotrain.contract.job import Job, ReplicaName, Role
from aerotrain.contract.options import Declared, Kind, options_of
from aerotrain.contract.steps import TrainArguments
from aerotrain.contract.strategy import STRATEGIES
from aerotrain.replica import Replica, live

#: The parser of an option's value on the command line, by kind.
_PARSERS: Mapping[Kind, Callable[[str], Any]] = {
    Kind.INTEGER: int,
    Kind.NUMBER: float,
    Kind.STRING: str,
    Kind.OBJECT: json.loads,
}


def run(replica: Replica) -> str | None:
    """Train as chief or peer, serve the training in another role, or evaluate its checkpoints.

    Returns:
        The URL of the trained model's manifest.
    """
    # Each role imports only what it needs: Keras takes seconds, and memory that ps never use.
    serves = replica.name.role is Role.WORKER and not replica.job.rules.peers
    if serves or replica.name.role in (Role.PS, Role.INPUT, Role.DISPATCHER):
        from aerotrain.training.servers import serve

        serve(replica)
        return None
    if replica.name.role is Role.EVALUATOR:
        from aerotrain.training.evaluator import follow

        follow(replica)
        return None
    from aerotrain.training.chief import train

    return train(replica)


def main(words: Sequence[str] | None = None) -> None:
    """Train in this process according to the command line, and exit as a replica does."""
    options = parse(words)
    try:
        _refuse_cluster(os.environ)
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


def _refuse_cluster(environment: Mapping[str, str]) -> None:
    """Check that this process is not one of several, which only a launcher can start.

    Raises:
        SpecError: TF_CONFIG is set.
    """
    if environment.get("TF_CONFIG"):
        raise SpecError(
            "TF_CONFIG is set in the environment, and the strategies that train by hand run in "
            "one process; unset it, or run the pipeline, whose launcher sets it for each replica"
        )


def _job(options: Namespace) -> Job:
    arguments = {
        each.name: getattr(options, each.name)
        for each in fields(TrainArguments)
        if hasattr(options, each.name)
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


def parse(words: Sequence[str] | None = None) -> Namespace:
    """The values of the command line: the options of ``TrainArguments``, and the output's place."""
    alone = [name for name, rules in STRATEGIES.items() if not rules.min_workers]
    stamp = time.strftime("by-hand-%Y%m%dT%H%M%S")
    parser = ArgumentParser(prog="python -m aerotrain.train", description="Train on one machine.")
    parser.add_argument("--model", required=True, help="module with build_model, in --code")
    parser.add_argument("--code", default=os.curdir, help="folder that holds the module")
    parser.add_argument("--data", required=True, help="URL of the prepared data set")
    parser.add_argument("--store", required=True, help="URL under which the output goes")
    parser.add_argument("--run", default=stamp, help="name of this run; the same one goes on")
    parser.add_argument("--strategy", choices=alone, default="one_device")
    for each in options_of(TrainArguments).values():
        parser.add_argument(f"--{each.name.replace('_', '-')}", **_flag(each))
    parser.add_argument("--learning-rate", type=float, help="goes to build_model, in hparams")
    return parser.parse_args(words)


def _flag(declared: Declared) -> dict[str, Any]:
    """The argparse arguments of an option; the word ``auto`` means null."""
    option = declared.option
    flag: dict[str, Any] = {"default": declared.default, "help": option.help.replace("%", "%%")}
    if option.kind is Kind.BOOLEAN:
        return {**flag, "action": BooleanOptionalAction}
    if option.choices:
        return {**flag, "choices": option.choices}
    parse = _PARSERS[option.kind]
    metavar = "JSON" if option.kind is Kind.OBJECT else option.kind.value.upper()
    if not option.optional:
        return {**flag, "type": parse, "metavar": metavar}
    return {
        **flag,
        "type": lambda text: None if text == "auto" else parse(text),
        "metavar": f"{metavar}|auto",
    }


if __name__ == "__main__":
    main()
