"""A process that has imported Airflow, from which Airflow's components are forked.

``python -P preloaded.py SOCKET``, with the descriptor of a socket. Each line from there is a
request in JSON, and its answer is a line with a number: ``{"start": …}`` imports modules, forks,
and answers with the process id of the component; ``{"wait": PID}`` answers with its exit code. The
process ends when the socket is closed.

Importing Airflow takes seconds of CPU. Without this process, each component would do that, and so
would the processes that Airflow forks from its components to parse a DAG file or to run a task.
"""

import gc
import importlib
import json
import os
import random
import socket
import sys
from typing import Any, NoReturn

from setproctitle import setproctitle


def main() -> None:
    gc.disable()  # what is imported is no garbage
    component = _serve(int(sys.argv[1]))
    if component is not None:
        _become(**component)


def _serve(descriptor: int) -> dict[str, Any] | None:
    """Answer requests until the socket is closed; in a forked process, return its component."""
    connection = socket.socket(fileno=descriptor)
    with connection, connection.makefile("rw") as stream:
        for line in stream:
            request = json.loads(line)
            if component := request.get("start"):
                for name in component.pop("modules"):
                    importlib.import_module(name)
                gc.freeze()  # otherwise the first collection of each fork would copy all pages
                answer = os.fork()
                if answer == 0:
                    return component
            else:
                answer = os.waitstatus_to_exitcode(os.waitpid(request["wait"], 0)[1])
            print(answer, file=stream, flush=True)
    return None


def _become(*, words: list[str], environment: dict[str, str], log: str) -> NoReturn:
    """Become the component: what ``airflow WORDS`` does in a session of its own."""
    gc.enable()
    os.setsid()
    output = os.open(log, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
    for stream in (1, 2):
        os.dup2(output, stream)
    # For `ps`. Once the environment is another one, it would not find where titles are.
    setproctitle(f"airflow {words[0]}")
    os.environ.clear()
    os.environ.update(environment)
    random.seed()
    sys.argv = ["airflow", *words]
    from airflow.__main__ import main

    sys.exit(main())  # type: ignore[no-untyped-call]


if __name__ == "__main__":
    main()
