"""Replicas of one job, each a process of this machine, with their output and their memory."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

from aerotrain.contract.environment import replica_environment, set_tensorflow_variables
from aerotrain.contract.job import Job, Role
from aerotrain.standalone import reserved_addresses

#: Makes TensorFlow divide the CPU into as many devices as its first argument says, and then runs
#: the module that the second one names.
PRELUDE = """
import runpy, sys
devices, module, *sys.argv[1:] = sys.argv[1:]
if devices != "1":
    import tensorflow as tf
    [cpu] = tf.config.list_physical_devices("CPU")
    each = [tf.config.LogicalDeviceConfiguration()] * int(devices)
    tf.config.set_logical_device_configuration(cpu, each)
runpy.run_module(module, run_name="__main__")
"""


@dataclass(frozen=True)
class Said:
    """A line of the chief's output, and when it came, in seconds."""

    seconds: float
    line: str


@dataclass(frozen=True)
class Ended:
    """The chief's output, and the peak memory of each replica, in MiB, by its name."""

    said: Sequence[Said]
    memory: Mapping[str, float]


def run_job(
    job: Job,
    folder: Path,
    module: str = "aerotrain.replica",
    words: Sequence[str] = (),
    *,
    python: str = sys.executable,
    devices: int = 1,
    environment: Mapping[str, str] | None = None,
    may_fail: bool = False,
) -> Ended:
    """Run ``module`` in a process for each replica until the chief ends; the others are stopped.

    Raises:
        RuntimeError: the chief has failed and may not; the message is its output.
    """
    root = Path(__file__).parent.parent
    common = {
        **os.environ,
        "PYTHONPATH": os.pathsep.join([str(root / "tasks"), str(root)]),
        **(environment or {}),
    }
    with ExitStack() as stack:
        addresses = stack.enter_context(reserved_addresses(job))
        processes = {}
        for name in job.names():
            scratch = folder / "scratch" / job.run / str(name)
            scratch.mkdir(parents=True)
            own = replica_environment(job, name, addresses, attempt="1")
            # A module that is no replica of ours reads TF_CONFIG itself.
            set_tensorflow_variables(own)
            process = subprocess.Popen(
                [python, "-c", PRELUDE, str(devices), module, *words],
                cwd=scratch,
                env={**common, **own},
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE if name.role is Role.CHIEF else subprocess.DEVNULL,
                stderr=subprocess.STDOUT,
                text=True,
            )
            processes[str(name)] = stack.enter_context(process)
            stack.callback(process.kill)
        chief = processes["chief"]
        said = [Said(time.monotonic(), line) for line in chief.stdout or ()]
        memory = {"chief": _memory(chief)}
        if chief.returncode and not may_fail:
            lines = "".join(each.line for each in said)
            raise RuntimeError(f"the chief of {job.run} has failed:\n{lines}")
        for other, process in processes.items():
            if other != "chief":
                os.kill(process.pid, signal.SIGKILL)  # Popen.kill might reap it
                memory[other] = _memory(process)
    return Ended(said, memory)


def _memory(process: subprocess.Popen[str]) -> float:
    """Wait for the process; its peak memory in MiB."""
    _, status, usage = os.wait4(process.pid, 0)
    process.returncode = os.waitstatus_to_exitcode(status)
    return usage.ru_maxrss / 1024
