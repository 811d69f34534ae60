"""The first process of a container in which Airflow runs tasks and their local replicas.

``python -m aerotrain.supervisor.container COMMAND …`` runs Airflow's COMMAND. A container is
stopped by SIGTERM to its first process alone, and all others are killed at its end. So this one
ends as ``make down`` does: Airflow is killed at once, before its tasks can end their replicas and
record a failure. Then the replicas are preempted, and have time to save checkpoints.
"""

import os
import signal
import subprocess
import sys
from collections.abc import Sequence

from aerotrain.supervisor.processes import adopt_orphans, descendants, send, session_of, wait_until

#: Seconds that replicas have to save checkpoints and end: a few more than their supervisor gives
#: them. The container's grace period must be longer.
GRACE = 15.0


def run(command: Sequence[str]) -> int:
    """Run the command in a session of its own, until it ends or SIGTERM is received.

    Returns:
        Its exit code, or 0 after SIGTERM.
    """
    adopt_orphans()
    airflow = subprocess.Popen(command, start_new_session=True).pid
    is_stopped = False

    def stop(*_: object) -> None:
        nonlocal is_stopped
        is_stopped = True
        send([airflow], signal.SIGKILL)

    signal.signal(signal.SIGTERM, stop)
    exit_code = _exit_code_of(airflow)
    everything = descendants(os.getpid())
    send([each for each in everything if session_of(each) == airflow], signal.SIGKILL)
    send(descendants(os.getpid()), signal.SIGTERM)
    wait_until(lambda: not descendants(os.getpid()), GRACE)
    return 0 if is_stopped else exit_code


def _exit_code_of(child: int) -> int:
    """Wait for the end of a child, and for that of each orphan that was adopted."""
    while (ended := os.wait())[0] != child:
        pass
    return os.waitstatus_to_exitcode(ended[1])


if __name__ == "__main__":
    sys.exit(run(sys.argv[1:]))
