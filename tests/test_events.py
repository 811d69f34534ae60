"""TensorBoard curves: a training works without them."""

import subprocess
import sys

import pytest

pytestmark = pytest.mark.process

# A limit of file sizes causes the error of a full disk, for this process alone.
WRITE = """
import resource, sys
from pathlib import Path
from aerotrain.training.hooks.report import EventFiles

events = EventFiles(Path(sys.argv[1]))
_, most = resource.getrlimit(resource.RLIMIT_FSIZE)
resource.setrlimit(resource.RLIMIT_FSIZE, (64, most))
for step in range(1000):
    events.write(step, {"loss": 1.0})
    events.flush()
print("the end")
"""


def test_a_full_disk_drops_tensorboard_curves_with_one_warning(tmp_path):
    done = subprocess.run(
        [sys.executable, "-c", WRITE, str(tmp_path)], capture_output=True, text=True, check=False
    )
    assert done.stdout.count("curves for TensorBoard are lost") == 1, done.stderr
    assert done.stdout.endswith("the end\n")
