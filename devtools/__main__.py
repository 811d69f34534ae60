"""``python -m devtools run|up|down``: a complete Airflow on this machine."""

import argparse
import json
import sys
from pathlib import Path
from typing import Any

from aerotrain.contract.errors import AerotrainError
from devtools import commands
from devtools.home import Home


def main() -> int:
    """Run the command; return the exit code."""
    options = _parser().parse_args()
    home, project = Home(options.home.resolve()), Path.cwd()
    try:
        match options.command:
            case "run":
                return commands.run(home, project, options.dag, options.conf)
            case "up":
                return commands.up(home, project, options.port)
            case "serve":
                return commands.serve(home, project, options.port, options.ready)
            case _:
                return commands.down(home)
    except AerotrainError as error:
        print(f"error: {error}", file=sys.stderr)
        return commands.COULD_NOT
    except commands.Interrupted as interrupted:
        print(f"{interrupted}; everything is stopped", file=sys.stderr)
        return interrupted.exit_code


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="devtools", description=__doc__)
    subcommands = parser.add_subparsers(dest="command", required=True)
    run = subcommands.add_parser("run", help="run a pipeline once, and stop everything again")
    up = subcommands.add_parser("up", help="start Airflow, and leave it running")
    down = subcommands.add_parser("down", help="stop what `up` started")
    serve = subcommands.add_parser("serve")  # started by `up`, in the background
    for each in (run, up, down, serve):
        each.add_argument(
            "--home", type=Path, default=Path(".local"), help="where everything is kept"
        )
    run.add_argument("--dag", default="digits", help="the pipeline, by the name of its DAG")
    run.add_argument("--conf", type=_conf, default={}, help="params of the run, as JSON")
    for each in (up, serve):
        each.add_argument("--port", type=int, default=8080, help="where the UI answers")
    serve.add_argument("--ready", type=int, required=True, help="a file descriptor")
    return parser


def _conf(text: str) -> dict[str, Any]:
    try:
        conf = json.loads(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(f"{text!r} is no JSON: {error}") from error
    if not isinstance(conf, dict):
        raise argparse.ArgumentTypeError(f"""{text!r} is no JSON object; write '{{"epochs": 3}}'""")
    return conf


if __name__ == "__main__":
    sys.exit(main())
