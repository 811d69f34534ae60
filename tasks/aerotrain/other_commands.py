"""The commands that run no step of a pipeline: ``new`` and ``compare``.

What they run imports Arrow, which other commands and their help do without.
"""

import sys
from argparse import ArgumentParser, Namespace
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

from aerotrain.contract.errors import FinalError


@dataclass(frozen=True)
class Other:
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
    from aerotrain.data.compare import page_of_two

    text = page_of_two(given.before, given.now)
    try:
        given.output.write_text(text, encoding="utf-8")
    except OSError as error:
        raise FinalError(
            f"{given.output} cannot be written: {error}; give another --output"
        ) from error
    print(f"written: {given.output}")


OTHERS: Mapping[str, Other] = {
    "new": Other(
        _add_new,
        _new,
        "write a pipeline for your data",
        "Write a pipeline for your data: a DAG, a module with a small model, and a test.\n\n"
        "The first records decide what each column is used for. All files are meant to be edited, "
        "and none is\noverwritten.",
    ),
    "compare": Other(
        _add_compare,
        _compare,
        "write a page of two data sets side by side",
        "Write a page of two data sets side by side.",
    ),
}
