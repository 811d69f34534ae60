"""Each extra can be installed and works without the other."""

import os
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from support.training_fixtures import DIGITS, Pipeline

pytestmark = [pytest.mark.process, pytest.mark.timeout(600)]

ROOT = Path(__file__).parent.parent

PARSE = """
from airflow.dag_processing.bundles.manager import DagBundlesManager
from airflow.dag_processing.dagbag import DagBag
bag = DagBag(DagBundlesManager().get_bundle("aerotrain-example-dags").path)
assert not bag.import_errors, bag.import_errors
print(sorted(bag.dags))
"""

Install = Callable[[str], Path]


@pytest.fixture
def install(tmp_path: Path) -> Install:
    """Make an environment with one extra, and return its Python."""
    uv = os.environ.get("UV") or shutil.which("uv")
    if uv is None:
        pytest.skip("uv is not on the PATH; `make test` brings it")

    def install(extra: str) -> Path:
        python = tmp_path / extra / "bin" / "python"
        lock = ["--constraint", "requirements.lock"]
        for command in (
            ["venv", "--quiet", str(tmp_path / extra)],
            ["pip", "install", "--quiet", "--python", str(python), *lock, f".[{extra}]"],
        ):
            subprocess.run([uv, *command], cwd=ROOT, stdin=subprocess.DEVNULL, check=True)
        _share_bytecode(python)
        return python

    return install


def test_airflow_alone_parses_the_example_dags_of_the_wheel(
    install: Install, tmp_path: Path
) -> None:
    python = install("airflow")
    environment = {"AIRFLOW_HOME": str(tmp_path), "AIRFLOW__CORE__LOAD_EXAMPLES": "True"}
    said = _run(python, "-c", PARSE, **environment)
    assert said.splitlines()[-1] == str(
        [
            "clothes",
            "digits",
            "flats",
            "flats_daily",
            "flats_daily_predictions",
            "flats_predictions",
            "retention",
            "reviews",
            "serving",
        ]
    )
    assert not _has(python, "tensorflow")


def test_tensorflow_alone_trains_by_hand(
    install: Install, digits: Pipeline, tmp_path: Path
) -> None:
    python = install("tensorflow")
    options = ["--model", "digits", "--code", str(DIGITS), "--data", digits.data]
    where = ["--store", (tmp_path / "store").as_uri(), "--epochs", "1", "--run", "by-hand"]
    said = _run(python.with_name("aerotrain"), "train", *options, *where)
    assert f"the trained model is {(tmp_path / 'store').as_uri()}/runs/by-hand/train" in said
    assert not _has(python, "airflow")


def _share_bytecode(python: Path) -> None:
    """Copy this environment's bytecode into the new one, because it takes a minute to compile.

    The files come from one installer's cache, so Python finds the bytecode valid; otherwise it
    compiles.
    """
    [theirs], ours = python.parent.parent.glob("lib/*/site-packages"), Path(pytest.__file__)
    ours = ours.parent.parent
    for compiled in ours.rglob("__pycache__/*.pyc"):
        folder = theirs / compiled.parent.relative_to(ours)
        if folder.parent.is_dir():
            folder.mkdir(exist_ok=True)
            (folder / compiled.name).symlink_to(compiled)


def _has(python: Path, package: str) -> bool:
    find = f"import importlib.util; print(importlib.util.find_spec({package!r}))"
    return _run(python, "-c", find) != "None\n"


def _run(python: Path, *words: str, **environment: str) -> str:
    """What an isolated interpreter prints, in a folder that contains nothing of this project."""
    clean = {name: os.environ[name] for name in ("PATH", "HOME", "LANG") if name in os.environ}
    done = subprocess.run(
        [python, *words],
        cwd=python.parent,
        env={**clean, **environment},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout
