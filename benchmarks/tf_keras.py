"""A temporary environment with tf_keras, which this project's environment does not contain."""

import os
import shutil
import subprocess
from importlib.metadata import version
from pathlib import Path

#: tf_keras requires the full TensorFlow in addition to tensorflow-cpu; this prevents that.
OVERRIDE = "tensorflow ; sys_platform == 'never'\n"


def make_environment(folder: Path) -> tuple[str, dict[str, str]] | str:
    """A Python in ``folder``, and the environment variables that make ``tf.keras`` mean tf_keras.

    If it cannot be installed, a sentence that says why.
    """
    uv = os.environ.get("UV") or shutil.which("uv")
    if not uv:
        return "uv is not on the PATH, and UV does not name it"
    folder.mkdir()
    override = folder / "override.txt"
    override.write_text(OVERRIDE)
    python = folder / "bin" / "python"
    wanted = ["tf_keras==2.21.*", f"tensorflow-cpu=={version('tensorflow-cpu')}"]
    # Without bytecode TensorFlow takes 16 s to import instead of 6, in every replica.
    where = ["--python", str(python), "--override", str(override), "--compile-bytecode"]
    try:
        for words in (
            ["venv", "--quiet", "--allow-existing", "--python", "3.11", str(folder)],
            ["pip", "install", "--quiet", *where, *wanted],
        ):
            subprocess.run([uv, *words], check=True, capture_output=True, text=True)
    except (OSError, subprocess.CalledProcessError) as error:
        return f"uv could not make it: {getattr(error, 'stderr', None) or error}"
    return str(python), {"TF_USE_LEGACY_KERAS": "1"}
