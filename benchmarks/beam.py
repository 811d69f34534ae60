"""A temporary environment with Apache Beam, which this project's environment does not contain."""

import os
import shutil
import subprocess
from pathlib import Path


def make_environment(folder: Path) -> str:
    """A Python in ``folder`` that has Beam, or a sentence that says why it cannot be installed."""
    uv = os.environ.get("UV") or shutil.which("uv")
    if not uv:
        return "uv is not on the PATH, and UV does not name it"
    python = folder / "bin" / "python"
    # Without its C extension Beam computes each checksum in Python, which takes 20 times as long.
    wanted = ["apache-beam==2.77.*", "google-crc32c", "crcmod"]
    try:
        for words in (
            ["venv", "--quiet", "--python", "3.11", str(folder)],
            ["pip", "install", "--quiet", "--python", str(python), *wanted],
        ):
            subprocess.run([uv, *words], check=True, capture_output=True, text=True)
    except (OSError, subprocess.CalledProcessError) as error:
        said = getattr(error, "stderr", None) or str(error)
        return f"uv could not create its environment: {said.strip().splitlines()[-1]}"
    return str(python)
