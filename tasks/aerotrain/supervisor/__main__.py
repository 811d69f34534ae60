"""``python -m aerotrain.supervisor FOLDER``: the supervisor of the job in that folder, detached."""

import os
import sys
from pathlib import Path

from aerotrain.supervisor.supervisor import supervise

if __name__ == "__main__":
    if os.fork():
        os._exit(0)
    os.setsid()
    supervise(Path(sys.argv[1]))
