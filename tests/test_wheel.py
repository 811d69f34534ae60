"""What is built in a clone has the project's files, and none of the clone's user."""

import shutil
import subprocess
import sys
import tarfile
import zipfile
from pathlib import Path

ROOT = Path(__file__).parent.parent
BUILD = "from hatchling.build import *; build_wheel('dist'); build_sdist('dist')"

#: What a user has in a clone, among it all that `aerotrain new` writes.
THEIRS = ("churn.py", "models/churn.py", "models/churn.weights.h5", "data/customers.csv")


def test_a_wheel_has_the_example_pipelines_and_no_file_of_the_users(tmp_path: Path) -> None:
    for folder in ("tasks", "plugins", "dags"):
        shutil.copytree(ROOT / folder, tmp_path / folder)
    for file in ("pyproject.toml", "README.md"):
        shutil.copy(ROOT / file, tmp_path)
    for file in THEIRS:
        (tmp_path / "dags" / file).write_text("mine")
    subprocess.run([sys.executable, "-c", BUILD], cwd=tmp_path, check=True)

    listing = ["git", "ls-files", "-z", "dags"]
    listed = subprocess.run(listing, cwd=ROOT, check=True, capture_output=True, text=True).stdout
    examples = {each.removeprefix("dags/") for each in listed.split("\0") if each}
    [wheel], [archive] = tmp_path.glob("dist/*.whl"), tmp_path.glob("dist/*.tar.gz")
    assert examples == below("aerotrain/example_dags/", zipfile.ZipFile(wheel).namelist())
    with tarfile.open(archive) as files:
        top = files.getnames()[0].partition("/")[0]
        assert examples == below(f"{top}/dags/", files.getnames())


def below(folder: str, names: list[str]) -> set[str]:
    return {each.removeprefix(folder) for each in names if each.startswith(folder)}
