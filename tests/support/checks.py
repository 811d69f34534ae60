"""Run the check that the argument describes, and say how it ended.

The output has a line of JSON: ``{"said": …}``, with its last line or its error.
"""

import json
import os
import sys
from contextlib import redirect_stdout
from io import StringIO
from pathlib import Path

from aerotrain.check import run
from aerotrain.contract.job import Job
from aerotrain.replica import Replica
from aerotrain.standalone import CHIEF
from support.training_fixtures import MODELS

sys.path.insert(0, str(MODELS))
output = StringIO()
try:
    with redirect_stdout(output):
        job = Job.from_json(sys.argv[1])
        run(Replica(job=job, name=CHIEF, attempt="1", scratch=Path.cwd()))
    said = output.getvalue().splitlines()[-1]
except Exception as error:  # noqa: BLE001 -- the test reads it
    said = str(error)
print(json.dumps({"said": said}), flush=True)
os._exit(0)  # the servers of a cluster cannot be stopped
