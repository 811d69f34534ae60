"""Which DAGs a clone has, found before Airflow starts: a wrong name is refused at once."""

import ast
import json
import os
import subprocess
import sys
from collections.abc import Collection, Iterator
from contextlib import suppress
from pathlib import Path
from tempfile import TemporaryDirectory

from aerotrain.contract.errors import FinalError, nearest

#: Prints the ids of the DAGs in a folder, and whether a file of it cannot be imported.
_PARSE = """
import json, sys
from airflow.dag_processing.dagbag import DagBag
bag = DagBag(sys.argv[1])
print(json.dumps({"dags": sorted(bag.dags), "has_errors": bool(bag.import_errors)}))
"""


def check_dag(project: Path, dag: str) -> None:
    """Check that ``dags/`` of a clone has the DAG.

    If a file cannot be imported, the running Airflow reports it.

    Raises:
        FinalError: it has not; the message names the nearest.
    """
    if dag in set(_declared(project / "dags")):  # most are found without importing Airflow
        return
    found = _parsed(project)
    if found is not None and dag not in found:
        raise no_dag(dag, found)


def no_dag(dag: str, found: Collection[str]) -> FinalError:
    """The error that a DAG is not among those found."""
    return FinalError(
        f"dags/ has no DAG {dag!r}{nearest(dag, list(found))}; "
        f"it has {', '.join(sorted(found)) or 'none'}"
    )


def _declared(folder: Path) -> Iterator[str]:
    """The ids of DAGs that functions with the decorator ``dag`` have, without running files."""
    for path in folder.rglob("*.py"):
        with suppress(OSError, SyntaxError, ValueError):  # reported when Airflow imports it
            for node in ast.walk(ast.parse(path.read_bytes())):
                if isinstance(node, ast.FunctionDef):
                    yield from (name for each in node.decorator_list for name in _ids(each, node))


def _ids(decorator: ast.expr, function: ast.FunctionDef) -> Iterator[str]:
    call = decorator if isinstance(decorator, ast.Call) else None
    called = decorator if call is None else call.func
    if not (isinstance(called, ast.Name) and called.id == "dag"):
        return
    given = [] if call is None else [*call.args[:1]]
    given += [] if call is None else [each.value for each in call.keywords if each.arg == "dag_id"]
    if not given:
        yield function.name
    for each in given:
        if isinstance(each, ast.Constant):
            yield str(each.value)


def _parsed(project: Path) -> list[str] | None:
    """The ids of all DAGs, as Airflow parses them; None if a file cannot be imported."""
    with TemporaryDirectory() as home:
        roots = [str(project / "tasks"), str(project / "plugins"), *sys.path]
        environment = {
            **os.environ,
            "AIRFLOW_HOME": home,
            "AIRFLOW__CORE__LOAD_EXAMPLES": "False",
            "AIRFLOW__CORE__DAGS_FOLDER": str(project / "dags"),
            "AIRFLOW__CORE__PLUGINS_FOLDER": str(project / "plugins"),
            "PYTHONPATH": os.pathsep.join(filter(None, roots)),
        }
        parsed = subprocess.run(
            [sys.executable, "-c", _PARSE, str(project / "dags")],
            env=environment,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            check=False,
        )
    if parsed.returncode:
        return None
    found = json.loads(parsed.stdout.splitlines()[-1])
    return None if found["has_errors"] else found["dags"]
