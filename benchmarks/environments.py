"""Temporary environments with packages that this project's environment does not contain."""

import os
import shutil
import subprocess
import sys
from collections.abc import Sequence
from importlib.metadata import version
from pathlib import Path


def with_beam(folder: Path) -> Path | str:
    """A Python in ``folder`` that has Apache Beam, or why it cannot be installed."""
    # Without its C extension Beam computes each checksum in Python, which takes 20 times as long.
    return _created(folder, ["apache-beam==2.77.*", "google-crc32c", "crcmod"])


def with_tf_keras(folder: Path) -> Path | str:
    """A Python in ``folder`` that has tf_keras, or why it cannot be installed.

    With the environment variable TF_USE_LEGACY_KERAS=1, ``tf.keras`` is tf_keras in it.
    """
    folder.mkdir()
    override = folder / "override.txt"
    # tf_keras requires the full TensorFlow in addition to tensorflow-cpu.
    override.write_text("tensorflow ; sys_platform == 'never'\n")
    wanted = ["tf_keras==2.21.*", f"tensorflow-cpu=={version('tensorflow-cpu')}"]
    # Without bytecode TensorFlow takes 16 s to import instead of 6, in every replica.
    return _created(folder, [*wanted, "--override", str(override), "--compile-bytecode"])


def add_keras_hub(folder: Path) -> None:
    """Install KerasHub into ``folder``; without its requirements for texts and for downloads.

    Raises:
        RuntimeError: it cannot be installed.
    """
    # tensorflow-text, which it requires too, would replace tensorflow-cpu.
    hub = ["keras-hub==0.32.*", "kagglehub", "kagglesdk"]
    packages = [*hub, "regex", "sentencepiece", "tokenizers", "tqdm"]
    words = ["pip", "install", "--quiet", "--no-deps", "--python", sys.executable]
    done = subprocess.run(
        [_uv(), *words, "--target", str(folder), *packages],
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode:
        raise RuntimeError(f"KerasHub cannot be installed: {done.stderr.strip()}")


def _uv() -> str:
    uv = os.environ.get("UV") or shutil.which("uv")
    if not uv:
        raise RuntimeError("uv is not on the PATH, and UV does not name it")
    return uv


def _created(folder: Path, install: Sequence[str]) -> Path | str:
    python = folder / "bin" / "python"
    try:
        uv = _uv()
        for words in (
            ["venv", "--quiet", "--allow-existing", "--python", "3.11", str(folder)],
            ["pip", "install", "--quiet", "--python", str(python), *install],
        ):
            subprocess.run([uv, *words], check=True, capture_output=True, text=True)
    except (OSError, RuntimeError, subprocess.CalledProcessError) as error:
        said = getattr(error, "stderr", None) or str(error)
        return f"uv could not create its environment: {said.strip().splitlines()[-1]}"
    return python
