"""TensorBoard curves: a training works without them."""

import pytest

from support.training_fixtures import start_python

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
    with start_python(["-c", WRITE, str(tmp_path)], tmp_path) as process:
        said = process.communicate(timeout=240)[0]
    assert said.count("curves for TensorBoard are lost") == 1, said
    assert said.endswith("the end\n")
