"""The tutorial: all of its commands run, in order, and print what the page says."""

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from aerotrain.supervisor.ports import reserved_ports
from devtools.stack import marked

pytestmark = [pytest.mark.process, pytest.mark.timeout(900)]

ROOT = Path(__file__).parent.parent

#: What the commands use of a clone, besides the folder of DAGs.
USED = ("Makefile", "pyproject.toml", "requirements.lock", "devtools", "docs", "plugins", "tasks")

#: Settings that save half a core while runs are under way: no DAG file changes during a run.
SAVING = {
    "AIRFLOW__SCHEDULER__SCHEDULER_IDLE_SLEEP_TIME": "1",
    "AIRFLOW__DAG_PROCESSOR__MIN_FILE_PROCESS_INTERVAL": "3600",
}

BLOCK = re.compile(r"^```(console|text)\n(.*?)^```$", re.DOTALL | re.MULTILINE)


@pytest.fixture
def clone(tmp_path: Path) -> Iterator[Path]:
    """A clone without DAGs, with this one's code and environment, whose Airflow ends at last."""
    for name in USED:
        (tmp_path / name).symlink_to(ROOT / name)
    (tmp_path / "dags").mkdir()
    shutil.copy(ROOT / "dags" / ".airflowignore", tmp_path / "dags")
    (tmp_path / ".venv").mkdir()
    for path in Path(sys.prefix).iterdir():
        if path.name != ".ready":
            (tmp_path / ".venv" / path.name).symlink_to(path)
    (tmp_path / ".venv" / ".ready").touch()
    (tmp_path / ".uv" / "bin").mkdir(parents=True)
    (tmp_path / ".uv" / "bin" / "uv").touch()  # nothing is left to install
    yield tmp_path
    bash("make down", tmp_path)


def bash(script: str, folder: Path, **variables: str) -> subprocess.CompletedProcess[str]:
    """Run the script without this Airflow's settings and those of `make test`."""
    inherited = {
        name: value
        for name, value in os.environ.items()
        if not name.startswith(("AIRFLOW", "MAKE", "MFLAGS", "AWS_"))
    }
    return subprocess.run(
        ["bash", "-euo", "pipefail", "-c", script],
        cwd=folder,
        env={**inherited, **variables},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=False,
    )


def test_every_command_of_the_tutorial_runs_and_prints_what_the_page_says(clone: Path) -> None:
    blocks = BLOCK.findall((ROOT / "docs" / "tutorial.md").read_text())
    script = "\n".join(block for kind, block in blocks if kind == "console")
    with reserved_ports(1) as [port]:
        number = str(port.number)
    script = script.replace("127.0.0.1:8080", f"127.0.0.1:{number}")
    ran = bash(script, clone, PORT=number, **SAVING)
    assert ran.returncode == 0, ran.stdout
    assert marked(clone / ".local") == []
    position = 0
    for line in (line for kind, block in blocks if kind == "text" for line in block.splitlines()):
        parts = (re.escape(part) for part in line.strip().split("…"))
        found = re.compile(r"[^\n]*".join(parts)).search(ran.stdout, position)
        assert found, f"the tutorial says {line!r}, and its commands print:\n{ran.stdout}"
        position = found.end()
