"""Run the checks that the arguments describe, each in a folder of its own, and say how each ended.

The output has a line of JSON for each: ``{"said": …}``, with its last line or its error.
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
for number, text in enumerate(sys.argv[1:]):
    scratch = Path(str(number)).absolute()
    scratch.mkdir()
    output = StringIO()
    try:
        with redirect_stdout(output):
            run(Replica(job=Job.from_json(text), name=CHIEF, attempt="1", scratch=scratch))
        said = output.getvalue().splitlines()[-1]
    except Exception as error:  # noqa: BLE001 -- the test reads it
        said = str(error)
    print(json.dumps({"said": said}), flush=True)
os._exit(0)  # the servers of a cluster cannot be stopped
