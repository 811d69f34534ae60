"""An environment with Apache Beam, which ours is without, made for the time of a benchmark."""

import os
import shutil
import subprocess
from pathlib import Path


def make_environment(folder: Path) -> str:
    """A Python in ``folder`` that has Beam; where it cannot be made, a sentence that says why."""
    uv = os.environ.get("UV") or shutil.which("uv")
    if not uv:
        return "uv is not on the PATH, and UV does not name it"
    python = folder / "bin" / "python"
    # Without its C checksum Beam would compute each in Python, 20 times as long.
    wanted = ["apache-beam==2.77.*", "google-crc32c", "crcmod"]
    try:
        for words in (
            ["venv", "--quiet", "--python", "3.11", str(folder)],
            ["pip", "install", "--quiet", "--python", str(python), *wanted],
        ):
            subprocess.run([uv, *words], check=True, capture_output=True, text=True)
    except (OSError, subprocess.CalledProcessError) as error:
        said = getattr(error, "stderr", None) or str(error)
        return f"uv could not make its environment: {said.strip().splitlines()[-1]}"
    return str(python)
