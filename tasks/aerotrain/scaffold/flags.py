"""The flags of ``aerotrain new``, apart from what it runs, which imports Arrow."""

from argparse import ArgumentParser

DESCRIPTION = """\
Write a pipeline for your data: a DAG, a module with a small model, and a test.

The first records decide what each column is used for. All files are meant to be edited, and none is
overwritten."""


def add_arguments(parser: ArgumentParser) -> None:
    """Add the flags of the command to its parser."""
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
