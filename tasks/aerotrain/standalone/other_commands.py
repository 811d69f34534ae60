"""The commands that run no step of a pipeline: ``new``, ``promote``, ``serve`` and others.

What imports Arrow or TensorFlow is imported on use: other commands and their help do without.
"""

import signal
import sys
from argparse import Namespace
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from getpass import getuser
from pathlib import Path
from typing import Any

from aerotrain.contract.errors import FinalError, counted
from aerotrain.contract.retention import RetentionPolicy
from aerotrain.launch.wanted import want
from aerotrain.serving import origin
from aerotrain.serving.alias import promote, rollback
from aerotrain.serving.pull import Puller, follow
from aerotrain.store import open_store


def _new(given: Namespace) -> None:
    """Write the files of a new pipeline; ask about what is in doubt only at a terminal."""
    from aerotrain.scaffold.command import asked, run

    run(given, asked if sys.stdin.isatty() else None)


def _promote(given: Namespace) -> None:
    store, reason = open_store(given.store), given.reason
    alias = promote(store, given.version, by=getuser(), reason=reason, older=given.older)
    print(f"served: version {alias.version}")


def _rollback(given: Namespace) -> None:
    alias = rollback(open_store(given.store), by=getuser(), reason=given.reason)
    print(f"served: version {alias.version}")


def _exit_at_sigterm() -> None:
    """Exit by an exception, so that temporary files are removed.

    The first process of a container has no default handler, so Kubernetes would wait 30 s.
    """
    signal.signal(signal.SIGTERM, lambda *_: sys.exit())


def _pull(given: Namespace) -> None:
    _exit_at_sigterm()
    puller = Puller(given.store, given.folder, given.version)
    if given.once or given.version:
        puller.sync()
    else:
        follow(puller, poll=given.poll)


def _serve(given: Namespace) -> None:
    from aerotrain.serving.development import serve

    _exit_at_sigterm()
    try:
        serve(given.store, given.port)
    except OSError as error:
        raise FinalError(
            f"port {given.port} cannot be used: {error}; give another one by --port"
        ) from error


def _retention(given: Namespace) -> None:
    from aerotrain.retention import run

    run(given)


def _scale(given: Namespace) -> None:
    for url in want(open_store(given.training), workers=given.workers):
        print(f"{url}: {counted(given.workers, 'worker')} asked for")


def _suspend(given: Namespace) -> None:
    for url in want(open_store(given.training), suspended=True):
        print(f"{url}: is suspended within seconds, after a checkpoint")


def _resume(given: Namespace) -> None:
    for url in want(open_store(given.training), suspended=False):
        print(f"{url}: goes on from its last checkpoint")


#: The arguments of ``ArgumentParser.add_argument`` for one flag.
Flag = tuple[tuple[str, ...], Mapping[str, Any]]


def _flag(*names: str, **more: Any) -> Flag:
    return names, more


_VERSIONS = "URL of the folder of versions, such as s3://bucket/flats/serving"
_PIPELINES = _flag("store", help="URL of the folder of pipelines, such as s3://bucket")
_TRAINING = _flag(
    "training",
    help="URL of the folder of a run, or of its training, such as s3://bucket/digits/runs/RUN",
)
_OF_CHANGE = (
    _flag("store", help=_VERSIONS),
    _flag("--reason", default="", help="why, for the history"),
)


@dataclass(frozen=True, kw_only=True)
class Subcommand:
    """A command: what it runs, what it does in one line and in ``more``, and its flags.

    There is also a flag for each field of the dataclass ``fields``.
    """

    run: Callable[[Namespace], None]
    help: str
    more: str = ""
    flags: tuple[Flag, ...] = ()
    fields: type | None = None

    @property
    def description(self) -> str:
        """What the help of the command says first."""
        line = f"{self.help[0].upper()}{self.help[1:]}."
        return f"{line}\n\n{self.more}" if self.more else line


OTHERS: Mapping[str, Subcommand] = {
    "new": Subcommand(
        run=_new,
        help="write a pipeline for your data: a DAG, a module with a small model, and a test",
        more="The first records decide what each column is used for. All files are meant to be "
        "edited, and none is\noverwritten.",
        flags=(
            _flag("name", help="name of the DAG and of the module"),
            _flag(
                "--from",
                dest="address",
                required=True,
                metavar="DATA",
                help="a file, a folder, or the URL of one: CSV, Parquet, JSON lines, or images by "
                "class",
            ),
            _flag("--label", help="the column to predict; by default it is guessed or asked"),
            _flag(
                "--task",
                choices=["classification", "regression"],
                help="what the label is; by default its values decide",
            ),
            _flag("--to", default="dags", metavar="FOLDER", help="the folder of your DAGs"),
        ),
    ),
    "scale": Subcommand(
        run=_scale,
        help="change the number of workers of a training that runs",
        more="It is one whose workers are a range, such as 1..4.",
        flags=(_TRAINING, _flag("workers", type=int, help="how many workers it should have")),
    ),
    "suspend": Subcommand(
        run=_suspend,
        help="save a training that runs, and end its replicas until it is resumed",
        flags=(_TRAINING,),
    ),
    "resume": Subcommand(
        run=_resume,
        help="go on with a training that was suspended",
        flags=(_TRAINING,),
    ),
    "promote": Subcommand(
        run=_promote,
        help="serve a version of a model: servers that follow the alias load it",
        flags=(
            *_OF_CHANGE,
            _flag("version", type=int, help="the number of the version"),
            _flag("--older", action="store_true", help="allow one older than the served one"),
        ),
    ),
    "rollback": Subcommand(
        run=_rollback,
        help="serve the version that was served before the present one was promoted",
        flags=_OF_CHANGE,
    ),
    "pull": Subcommand(
        run=_pull,
        help="keep a folder as the version that is served",
        more="It is for TensorFlow Serving, which reads no bucket.",
        flags=(
            _flag("store", help=_VERSIONS),
            _flag("folder", type=Path, help="the folder that TensorFlow Serving watches"),
            _flag("--poll", type=float, default=2.0, help="seconds between two looks (2)"),
            _flag("--once", action="store_true", help="end when the folder has the version"),
            _flag("--version", type=int, help="pull this version once, whichever one is served"),
        ),
    ),
    "serve": Subcommand(
        run=_serve,
        help="serve models on this machine, for development",
        more="It has TensorFlow Serving's REST API, and follows what is promoted.",
        flags=(_PIPELINES, _flag("--port", type=int, default=8501, help="its port (8501)")),
    ),
    "origin": Subcommand(
        run=origin.run,
        help="print what a version was made of: data, code, options, packages",
        flags=(
            _flag("version", help="URL of a version, or its number with --store"),
            _flag("--store", help=_VERSIONS),
            _flag("--json", action="store_true", help="print one JSON document"),
        ),
    ),
    "retention": Subcommand(
        run=_retention,
        help="remove old runs, versions, data sets and others from a store, by a policy",
        more="Without --delete, it only lists them. What a kept version or run was made of is "
        "kept, too.",
        flags=(
            _PIPELINES,
            _flag("--pipeline", help="the id of one DAG; without it, all pipelines"),
            _flag("--delete", action="store_true", help="remove; without it, nothing is"),
            _flag("--kept", action="store_true", help="also list what is kept, and why"),
        ),
        fields=RetentionPolicy,
    ),
}
