"""The command line: each step by hand, without Airflow.

::

    aerotrain new churn --from customers.csv
    aerotrain check --model digits --source digits --code dags/models --store file:///data/digits
    aerotrain prepare digits --code dags/models --store file:///data/digits
    aerotrain train --model digits --code dags/models \\
        --data file:///data/digits/datasets/1a2b… --store file:///data/digits

The flags of a step are the fields of its arguments. ``other_commands`` has those that run no step.
"""

import inspect
import json
import os
import signal
import sys
import tempfile
import time
import traceback
import uuid
from argparse import (
    ArgumentParser,
    ArgumentTypeError,
    BooleanOptionalAction,
    Namespace,
    RawDescriptionHelpFormatter,
)
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import MISSING, Field, dataclass, fields, replace
from pathlib import Path
from typing import Any, NoReturn

from aerotrain.contract.errors import AerotrainError, ExitCode, SpecError, nearest
from aerotrain.contract.job import Deadlines, Job
from aerotrain.contract.layout import JOB
from aerotrain.contract.options import Option, options_of
from aerotrain.contract.preparing import PlanArguments, PredictArguments
from aerotrain.contract.replicas import Role
from aerotrain.contract.steps import EvaluateArguments, ExportArguments, arguments_of, check_of
from aerotrain.contract.strategy import COUNTED_BY, SWITCHED_BY, TrainingOptions
from aerotrain.contract.training import TrainArguments
from aerotrain.contract.validation import LIMITS, Validated, default_of, field_type
from aerotrain.replica import Replica, exit_code_of, ignore_full_disk, run_replica
from aerotrain.standalone import (
    ATTEMPT,
    CHIEF,
    predict,
    prepare,
    remove_at_exit,
    run_replicas,
)
from aerotrain.standalone.other_commands import OTHERS
from aerotrain.store import open_store

_SOURCE = 'a module with list_parts and read_part, or JSON: {"kind": "csv", "url": "s3://…"}'


@dataclass(frozen=True)
class Command:
    """A command: the module that it runs, the arguments of that, and what it does."""

    module: str
    arguments: type[Validated]
    help: str
    description: str = ""


COMMANDS: Mapping[str, Command] = {
    "check": Command(
        "aerotrain.training.train",
        TrainArguments,
        "check whether a model can be trained",
        "Train, evaluate and export a model in small, on the first records of a source.\n\n"
        "It makes all checks of a training, for replicas that are not started. Nothing is written.",
    ),
    "prepare": Command(
        "aerotrain.data.prepare.plan", PlanArguments, "write a data set of a source"
    ),
    "train": Command("aerotrain.training.train", TrainArguments, "train a model on a data set"),
    "evaluate": Command(
        "aerotrain.evaluation.evaluate", EvaluateArguments, "measure a model on a split"
    ),
    "export": Command("aerotrain.serving.export", ExportArguments, "export a model for serving"),
    "predict": Command(
        "aerotrain.prediction.plan", PredictArguments, "predict by an exported model"
    ),
}

#: The commands that run several steps, one of them for each partition of a source.
_OF_SOURCES = ("prepare", "predict")


def main(words: Sequence[str] | None = None) -> NoReturn:
    """Run the step that the command line describes, and exit as a replica does."""
    given = parse(words)
    try:
        job = _job_or_exit(given)
    except BrokenPipeError:  # the reader has ended, such as `head`; so must the flush at the exit
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        sys.exit(ExitCode.OK)
    ignore_full_disk()  # nor does a closed pipe, as of `| head`, end the job
    signal.signal(signal.SIGINT, lambda *_: signal.raise_signal(signal.SIGTERM))
    scratch = Path(tempfile.mkdtemp(prefix="aerotrain-"))
    remove_at_exit(scratch)
    _keep_temporary_files_in(scratch / "tmp")
    code: int = ExitCode.FINAL
    try:
        if given.command == "check":  # its result is its exit code
            job = replace(job, store=(scratch / "store").as_uri())
        else:
            print(f"run {job.run}: the output goes to {job.prefix}", flush=True)
            open_store(job.prefix).put(JOB, job.record())
        code = _run(job, given, scratch)
        if code == ExitCode.OK and given.command == "train":
            print(f"the trained model is {job.prefix}/model.json", flush=True)
    except AerotrainError as error:
        print(f"error: {error}", flush=True)
        code = exit_code_of(error)
    except SystemExit as error:
        code = error.code if isinstance(error.code, int) else ExitCode.FINAL
    except Exception:  # noqa: BLE001 -- a bug: the finally would hide it
        traceback.print_exc()
    finally:
        os._exit(code)  # a normal exit would wait for TensorFlow's threads


def _job_or_exit(given: Namespace) -> Job:
    """The job of a step; any other command is carried out here, and ends this process."""
    try:
        if given.command in OTHERS:
            OTHERS[given.command].run(given)
            sys.stdout.flush()
            sys.exit(ExitCode.OK)
        job = job_of(given)
        if given.command == "train":
            _check_environment(os.environ)
    except AerotrainError as error:
        print(f"error: {error}", flush=True)
        sys.exit(exit_code_of(error))
    return job


def _run(job: Job, given: Namespace, scratch: Path) -> int:
    """Run the job as processes if it has several replicas, else in this process."""
    if len(list(job.names())) > 1:
        return run_replicas(job, scratch, os.environ)

    def whole(replica: Replica) -> str:
        run = predict if given.command == "predict" else prepare
        return run(job.store, scratch, run=job.run, processes=given.processes, **job.arguments)

    replica = Replica(job=job, name=CHIEF, attempt=ATTEMPT, scratch=scratch)
    return run_replica(replica, whole if given.command in _OF_SOURCES else None)


def _keep_temporary_files_in(folder: Path) -> None:
    """Create ``folder`` for temporary files; TensorFlow removes its own only at a normal exit."""
    folder.mkdir()
    os.environ["TMPDIR"] = str(folder)
    tempfile.tempdir = None  # to be read from the environment again


def _check_environment(environment: Mapping[str, str]) -> None:
    """Check that this process is not one of several, which only a launcher can start.

    Raises:
        SpecError: TF_CONFIG is set.
    """
    if environment.get("TF_CONFIG"):
        raise SpecError(
            "TF_CONFIG is set in the environment, and a training sets it for each of its replicas "
            "by itself; unset it"
        )


def job_of(given: Namespace) -> Job:
    """The job that the command line describes.

    Raises:
        SpecError: it cannot run; the message says why and what to do.
    """
    command, values = COMMANDS[given.command], vars(given)
    arguments = {each.name: values[each.name] for each in fields(command.arguments)}  # type: ignore[arg-type]
    more: dict[str, Any] = {}
    if command.arguments is TrainArguments:
        chosen = {name: values[name] for name in options_of(TrainingOptions)}
        options = TrainingOptions(**chosen)
        more = {
            "strategy": options.strategy,
            "deadlines": {"progress_timeout": given.progress_timeout},
            "replicas": _replicas(options),
        }
    if given.command in _OF_SOURCES and given.processes < 1:
        raise SpecError(f"processes must be 1 or more, got {given.processes}")
    job = Job.from_dict(
        {
            "name": given.command,
            "module": command.module,
            "store": given.store,
            "run": given.run,
            "task": given.command,
            "code": _code(given.code),
            "arguments": arguments,
            **more,
        }
    )
    arguments_of(job)
    if given.command != "check":
        return job
    if bool(given.source) == bool(given.data):
        raise SpecError("check needs the records of either --source or --data; give one of them")
    prepare = {"source": given.source} if given.source else {}
    # Of the records that it trains on, for there may be no other split.
    later = [{"model": "", "data": "", "split": "train"}]
    return check_of(job, prepare, evaluations=later, exports=later, name=job.name, task=job.task)


def _code(given: str) -> str:
    """The folder of the user's modules, or the URL of their archive, which ``model.json`` names.

    Raises:
        SpecError: there is no such folder.
    """
    if "://" in given:
        return given
    folder = Path(given).resolve()
    if not folder.is_dir():
        raise SpecError(f"--code names no folder: {folder}; give the folder of your modules")
    return str(folder)


def _replicas(options: TrainingOptions) -> list[dict[str, Any]]:
    """The replicas of a training; a count of None is the strategy's default."""
    counts: dict[Role, Any] = {
        Role.CHIEF: 1,
        **{role: getattr(options, name) for role, name in COUNTED_BY.items()},
        **{role: int(bool(getattr(options, name))) for role, name in SWITCHED_BY.items()},
    }
    return [{"role": role, "count": count} for role, count in counts.items()]


class _Parser(ArgumentParser):
    """A parser whose errors are one sentence."""

    def error(self, message: str) -> NoReturn:
        self.exit(2, f"error: {message}; see {self.prog} --help\n")


def parse(words: Sequence[str] | None = None) -> Namespace:
    """The values of the command line; ``command`` is the name of the command."""
    parser = _Parser(prog="aerotrain", description="Run one step of a pipeline on this machine.")
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")
    for name, other in OTHERS.items():
        added = _added(commands, name, other.help, other.description)
        for names, flag in other.flags:
            added.add_argument(*names, **flag)
        if other.fields is not None:
            add_fields(added, other.fields)
    for name, command in COMMANDS.items():
        described = (inspect.getdoc(command.arguments) or "").partition("\n\nRaises:")[0]
        added = _added(commands, name, command.help, command.description or described)
        _add_step_flags(added, name, command)
    given, unknown = parser.parse_known_args(words)
    if unknown:
        flags = [f"--{name.replace('_', '-')}" for name in vars(given)]
        parser.error(f"unrecognized arguments: {' '.join(unknown)}{nearest(unknown[0], flags)}")
    return given


def _added(commands: Any, name: str, summary: str, description: str) -> ArgumentParser:
    """The parser of a command, which was added to the others."""
    parser: ArgumentParser = commands.add_parser(
        name,
        help=summary,
        description=description,
        formatter_class=RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    return parser


def _add_step_flags(parser: ArgumentParser, name: str, command: Command) -> None:
    """The flags of a command that runs a step: where, and the fields of its arguments."""
    stamp = f"{time.strftime('by-hand-%Y%m%dT%H%M%S')}-{uuid.uuid4().hex[:6]}"
    code = "folder of your modules, or the URL of an archive of it"
    parser.add_argument("--code", default=os.curdir, help=code)
    parser.add_argument(
        "--store",
        "--output",
        required=name != "check",
        default="file:///",
        help="URL under which the output goes",
    )
    parser.add_argument(
        "--run", default=stamp, help="name of this run; a run of the same name resumes"
    )
    if name in _OF_SOURCES:
        parser.add_argument("source", type=_source, help=_SOURCE)
        parser.add_argument(
            "--processes", type=int, default=1, help="how many partitions to write at the same time"
        )
    if command.arguments is TrainArguments:
        add_fields(parser, TrainingOptions)
        add_fields(parser, Deadlines, leave_out=("start", "run"))
    if name == "check":
        parser.add_argument("--source", type=_source, help=_SOURCE)
        parser.add_argument("--data", default="", help="URL of a data set, instead of --source")
    add_fields(
        parser, command.arguments, leave_out=("source", *(["data"] if name == "check" else []))
    )


def _source(text: str) -> Any:
    """A source's description; a word without braces is the name of a user's module."""
    return json_of(text) if text.startswith("{") else {"kind": "python", "module": text}


def add_fields(parser: ArgumentParser, owner: type, leave_out: Collection[str] = ()) -> None:
    """Add a flag for each field of the dataclass ``owner``."""
    for each in fields(owner):
        if each.name not in leave_out:
            parser.add_argument(f"--{each.name.replace('_', '-')}", **_flag(each))


def _flag(field: Field[Any]) -> dict[str, Any]:
    """The argparse arguments of a field; the word ``auto`` means null, of an option.

    The docstring of its dataclass describes a field that is no option.
    """
    kind, option, default = field_type(field), field.metadata.get(LIMITS), default_of(field)
    flag: dict[str, Any] = {"required": True} if default is MISSING else {"default": default}
    can_be_auto = isinstance(option, Option) and kind.optional
    if isinstance(option, Option):
        words = option.full_help.replace("%", "%%").replace("**", "")
        # The form leaves the field empty.
        flag["help"] = words.replace("Empty:", "auto:") if can_be_auto else words
    if kind.kind is bool:
        return {**flag, "action": BooleanOptionalAction}
    if kind.limits.choices:
        return {**flag, "choices": kind.limits.choices}
    name, parse = _PARSERS.get(kind.kind, ("JSON", json_of))
    if kind.is_size:
        name, parse = "NUMBER|RANGE", str
    if can_be_auto:
        return {**flag, "type": _or_auto(parse, name.lower()), "metavar": f"{name}|auto"}
    return {**flag, "type": parse, "metavar": name}


def _or_auto(parse: Callable[[str], Any], kind: str) -> Callable[[str], Any]:
    """A parser of values of that kind, and of the word ``auto``, which is null."""

    def value(text: str) -> Any:
        if text == "auto":
            return None
        try:
            return parse(text)
        except ValueError:
            raise ArgumentTypeError(f"{text!r} is no {kind}; or give auto") from None

    return value


def json_of(text: str) -> Any:
    """The value of a flag that takes JSON."""
    try:
        return json.loads(text)
    except ValueError as error:
        raise ArgumentTypeError(f"{text!r} is not JSON: {error}") from error


#: The name and the parser of a value by its type; all others are JSON.
_PARSERS: Mapping[type, tuple[str, Callable[[str], Any]]] = {
    int: ("INTEGER", int),
    float: ("NUMBER", float),
    str: ("STRING", str),
}
