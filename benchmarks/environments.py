"""Packages that this project's environment does not contain, installed into temporary folders."""

import os
import shutil
import subprocess
import sys
from pathlib import Path


def with_beam(folder: Path) -> Path:
    """A Python in ``folder`` that has Apache Beam.

    Raises:
        RuntimeError: it cannot be installed.
    """
    python = folder / "bin" / "python"
    _uv("venv", "--quiet", "--python", "3.11", str(folder))
    # Without its C extension Beam computes each checksum in Python, which takes 20 times as long.
    packages = ["apache-beam==2.77.*", "google-crc32c", "crcmod"]
    _uv("pip", "install", "--quiet", "--python", str(python), *packages)
    return python


def add_keras_hub(folder: Path) -> None:
    """Install KerasHub into ``folder``; without its requirements for texts and for downloads.

    Raises:
        RuntimeError: it cannot be installed.
    """
    # tensorflow-text, which it requires too, would replace tensorflow-cpu.
    hub = ["keras-hub==0.32.*", "kagglehub", "kagglesdk"]
    packages = [*hub, "regex", "sentencepiece", "tokenizers", "tqdm"]
    words = ["pip", "install", "--quiet", "--no-deps", "--python", sys.executable]
    _uv(*words, "--target", str(folder), *packages)


def _uv(*words: str) -> None:
    uv = os.environ.get("UV") or shutil.which("uv")
    if not uv:
        raise RuntimeError("uv is not on the PATH, and UV does not name it")
    done = subprocess.run([uv, *words], capture_output=True, text=True, check=False)
    if done.returncode:
        raise RuntimeError(f"uv {words[0]} failed: {done.stderr.strip()}")
