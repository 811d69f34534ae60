"""The commands that run no step of a pipeline: ``new``, ``compare``, ``promote`` and others.

What they run imports Arrow, which other commands and their help do without.
"""

import os
import signal
import sys
from argparse import ArgumentParser, Namespace
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from getpass import getuser
from pathlib import Path

from aerotrain.contract.errors import FinalError


@dataclass(frozen=True)
class Subcommand:
    """A command: its flags, what it runs, and what it does."""

    add_arguments: Callable[[ArgumentParser], None]
    run: Callable[[Namespace], None]
    help: str
    description: str


def _add_new(parser: ArgumentParser) -> None:
    parser.add_argument("name", help="name of the DAG and of the module")
    parser.add_argument(
        "--from",
        dest="address",
        required=True,
        metavar="DATA",
        help="a file, a folder, or the URL of one: CSV, Parquet, JSON lines, or images by class",
    )
    parser.add_argument("--label", help="the column to predict; by default it is guessed or asked")
    parser.add_argument(
        "--task",
        choices=["classification", "regression"],
        help="what the label is; by default its values decide",
    )
    parser.add_argument("--to", default="dags", metavar="FOLDER", help="the folder of your DAGs")


def _new(given: Namespace) -> None:
    """Write the files of a new pipeline; ask about what is in doubt only at a terminal."""
    from aerotrain.scaffold.command import asked, run

    run(given, asked if sys.stdin.isatty() else None)


def _add_compare(parser: ArgumentParser) -> None:
    parser.add_argument("before", help="URL of a data set")
    parser.add_argument("now", help="URL of the data set to compare with it, by its rules of drift")
    parser.add_argument(
        "-o", "--output", type=Path, default=Path("compare.html"), help="file of the page"
    )


def _compare(given: Namespace) -> None:
    """Write the page of two data sets."""
    from aerotrain.data.prepare.finalize import page_of_two

    text = page_of_two(given.before, given.now)
    try:
        given.output.write_text(text, encoding="utf-8")
    except OSError as error:
        raise FinalError(
            f"{given.output} cannot be written: {error}; give another --output"
        ) from error
    print(f"written: {given.output}")


def _add_promote(parser: ArgumentParser) -> None:
    _add_change(parser)
    parser.add_argument("version", type=int, help="the number of the version")
    parser.add_argument(
        "--older", action="store_true", help="allow a version that is older than the served one"
    )


def _add_change(parser: ArgumentParser) -> None:
    parser.add_argument(
        "store", help="URL of the folder of versions, such as s3://bucket/flats/serving"
    )
    parser.add_argument("--reason", default="", help="why, for the history")


def _promote(given: Namespace) -> None:
    """Serve a version, and say so."""
    from aerotrain.serving.alias import promote
    from aerotrain.store import open_store

    store, reason = open_store(given.store), given.reason
    alias = promote(store, given.version, by=getuser(), reason=reason, older=given.older)
    print(f"served: version {alias.version}")


def _rollback(given: Namespace) -> None:
    """Serve the version before, and say so."""
    from aerotrain.serving.alias import rollback
    from aerotrain.store import open_store

    alias = rollback(open_store(given.store), by=getuser(), reason=given.reason)
    print(f"served: version {alias.version}")


def _add_pull(parser: ArgumentParser) -> None:
    parser.add_argument(
        "store", help="URL of the folder of versions, such as s3://bucket/flats/serving"
    )
    parser.add_argument("folder", type=Path, help="the folder that TensorFlow Serving watches")
    parser.add_argument("--poll", type=float, default=2.0, help="seconds between two looks (2)")
    parser.add_argument("--once", action="store_true", help="end when the folder has the version")
    parser.add_argument(
        "--version", type=int, help="pull this version once, whichever one is served"
    )


def _pull(given: Namespace) -> None:
    """Keep a folder as the version that is served."""
    from aerotrain.serving.pull import Puller, follow

    # The first process of a container has no default handler, so Kubernetes would wait 30 s.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit())
    puller = Puller(given.store, given.folder, given.version)
    if given.once or given.version:
        puller.sync()
    else:
        follow(puller, poll=given.poll)


def _add_serve(parser: ArgumentParser) -> None:
    parser.add_argument("store", help="URL of the folder of pipelines, such as s3://bucket")
    parser.add_argument("--port", type=int, default=8501, help="its port (8501)")


def _serve(given: Namespace) -> None:
    """Serve the models of all pipelines, for development."""
    from aerotrain.serving.development import serve

    try:
        serve(given.store, given.port)
    except OSError as error:
        raise FinalError(
            f"port {given.port} cannot be used: {error}; give another one by --port"
        ) from error


def _add_reproduce(parser: ArgumentParser) -> None:
    from aerotrain.reproduction.command import add_arguments

    add_arguments(parser)


def _reproduce(given: Namespace) -> None:
    from aerotrain.reproduction.command import run

    run(given, os.environ)


def _add_retention(parser: ArgumentParser) -> None:
    from aerotrain.retention.removal import add_arguments

    add_arguments(parser)


def _retention(given: Namespace) -> None:
    from aerotrain.retention.removal import run

    run(given)


OTHERS: Mapping[str, Subcommand] = {
    "new": Subcommand(
        _add_new,
        _new,
        "write a pipeline for your data",
        "Write a pipeline for your data: a DAG, a module with a small model, and a test.\n\n"
        "The first records decide what each column is used for. All files are meant to be edited, "
        "and none is\noverwritten.",
    ),
    "compare": Subcommand(
        _add_compare,
        _compare,
        "write a page of two data sets side by side",
        "Write a page of two data sets side by side.",
    ),
    "promote": Subcommand(
        _add_promote,
        _promote,
        "serve a version of a model",
        "Serve a version of a model: servers that follow the alias load it.",
    ),
    "pull": Subcommand(
        _add_pull,
        _pull,
        "keep a folder as the version that is served",
        "Keep a folder as the version that is served, for TensorFlow Serving, which reads no "
        "bucket.",
    ),
    "serve": Subcommand(
        _add_serve,
        _serve,
        "serve models on this machine, for development",
        "Serve the models of a store on this machine, for development, with TensorFlow Serving's "
        "REST API.\n\nIt follows what is promoted.",
    ),
    "reproduce": Subcommand(
        _add_reproduce,
        _reproduce,
        "print what a version was made of, or make it again",
        "Print what a version was made of, and what of that has changed since.\n\nWith --run, the "
        "model is trained again on this machine, and the weights are compared.",
    ),
    "retention": Subcommand(
        _add_retention,
        _retention,
        "remove what is old from a store",
        "Remove old runs, versions, data sets, predictions and others from a store, by a policy."
        "\n\nWithout --delete, it only lists them. What a kept version or run was made of is kept, "
        "too.",
    ),
    "rollback": Subcommand(
        _add_change,
        _rollback,
        "serve the version before",
        "Serve the version that was served before the present one was promoted.",
    ),
}
