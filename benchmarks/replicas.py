"""Replicas of one job, each a process of this machine, with their output and their memory.

``python -m benchmarks.replicas DEVICES MODULE WORDS`` is such a process: it runs the module on so
many virtual CPU devices.
"""

import os
import runpy
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from aerotrain.contract.environment import replica_environment, set_tensorflow_variables
from aerotrain.contract.job import Job
from aerotrain.contract.replicas import Role
from aerotrain.supervisor.ports import reserved_addresses
from aerotrain.training import set_environment
from benchmarks.report import ROOT

REPLICA = "aerotrain.replica"


@dataclass(frozen=True)
class Said:
    """A line of the chief's output, and when it came, in seconds."""

    seconds: float
    line: str


@dataclass(frozen=True)
class Ended:
    """The chief's output and exit code, and the peak memory of each replica, in MiB."""

    said: Sequence[Said]
    code: int
    memory: Mapping[str, float]

    @property
    def text(self) -> str:
        return "".join(each.line for each in self.said)


def run_job(
    job: Job,
    folder: Path,
    module: str = REPLICA,
    words: Sequence[str] = (),
    *,
    devices: int = 1,
    environment: Mapping[str, str] | None = None,
    addresses: Mapping[Any, str] | None = None,
    within: Callable[[int], Sequence[str]] = lambda _: (),
    take: Callable[[str], None] = lambda _: None,
    may_fail: bool = False,
) -> Ended:
    """Run ``module`` in a process for each replica until the chief ends; others are killed.

    Args:
        folder: where each replica gets a working directory.
        devices: the number of virtual CPU devices of each process.
        addresses: of the replicas; by default reserved ports of this machine.
        within: the command that runs that of a replica, by the replica's position in the job.
        take: called with each line of the chief when it comes.
        may_fail: otherwise a chief that fails raises a RuntimeError with its output.
    """
    with ExitStack() as stack:
        if addresses is None:
            addresses, _ = stack.enter_context(reserved_addresses(job))
        processes = {}
        for index, name in enumerate(job.names()):
            own = replica_environment(job, name, addresses, attempt="1")
            set_tensorflow_variables(own)  # a module that is no replica of ours reads TF_CONFIG
            scratch = folder / "scratch" / job.run / str(name)
            scratch.mkdir(parents=True)
            process = subprocess.Popen(
                [
                    *(*within(index), sys.executable, "-m"),
                    *("benchmarks.replicas", str(devices), module, *words),
                ],
                cwd=scratch,
                env={
                    **os.environ,
                    "PYTHONPATH": os.pathsep.join([str(ROOT / "tasks"), str(ROOT)]),
                    **own,
                    **(environment or {}),
                },
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE if name.role is Role.CHIEF else subprocess.DEVNULL,
                stderr=subprocess.STDOUT,
                text=True,
            )
            processes[str(name)] = stack.enter_context(process)
            stack.callback(process.kill)
        chief = processes["chief"]
        said = []
        for line in chief.stdout or ():
            said.append(Said(time.monotonic(), line))
            take(line)
        memory = {"chief": _peak(chief)}
        for name, process in processes.items():
            if process is not chief:
                os.kill(process.pid, signal.SIGKILL)  # a method of it would take its end
                memory[name] = _peak(process)
    ended = Ended(said, chief.returncode, memory)
    if ended.code and not may_fail:
        raise RuntimeError(f"the chief of {job.run} has failed:\n{ended.text}")
    return ended


def _peak(process: subprocess.Popen[str]) -> float:
    """Wait for the end of a process; returns its peak memory in MiB."""
    _, status, usage = os.wait4(process.pid, 0)
    process.returncode = os.waitstatus_to_exitcode(status)
    return usage.ru_maxrss / 1024


def main() -> None:
    devices = int(sys.argv[1])
    sys.argv = sys.argv[2:]
    if devices > 1:
        set_environment(os.environ)
        import tensorflow as tf

        [cpu] = tf.config.list_physical_devices("CPU")
        each = [tf.config.LogicalDeviceConfiguration()] * devices
        tf.config.set_logical_device_configuration(cpu, each)
    runpy.run_module(sys.argv[0], run_name="__main__", alter_sys=True)


if __name__ == "__main__":
    main()
