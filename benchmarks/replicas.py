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
from benchmarks.workloads import DEVICES

REPLICA = "aerotrain.replica"


@dataclass(frozen=True)
class Ended:
    """The lines of the chief, each with the seconds when it came, its exit code, and the peak
    memory of each replica, in MiB.
    """

    lines: Sequence[tuple[float, str]]
    code: int
    memory: Mapping[str, float]

    @property
    def text(self) -> str:
        return "".join(line for _, line in self.lines)


def run_job(
    job: Job,
    folder: Path,
    module: str = REPLICA,
    words: Sequence[str] = (),
    *,
    environment: Mapping[str, str] | None = None,
    addresses: Mapping[Any, str] | None = None,
    within: Sequence[Sequence[str]] = (),
    take: Callable[[str], None] = lambda _: None,
    may_fail: bool = False,
) -> Ended:
    """Run ``module`` in a process for each replica until the chief ends; others are killed.

    Args:
        folder: where each replica gets a working directory.
        addresses: of the replicas; by default reserved ports of this machine.
        within: the commands that run those of the replicas, in the order of the job.
        take: called with each line of the chief when it comes.
        may_fail: otherwise a chief that fails raises a RuntimeError with its output.
    """
    command = [sys.executable, "-m", "benchmarks.replicas", str(DEVICES.get(job.strategy, 1))]
    processes: dict[str, subprocess.Popen[str]] = {}
    with ExitStack() as stack:
        if addresses is None:
            addresses, _ = stack.enter_context(reserved_addresses(job))
        for index, name in enumerate(job.names()):
            own = replica_environment(job, name, addresses, attempt="1")
            set_tensorflow_variables(own)  # a module that is no replica of ours reads TF_CONFIG
            scratch = folder / "scratch" / job.run / str(name)
            scratch.mkdir(parents=True)
            prefix = within[index] if within else ()
            process = subprocess.Popen(
                [*prefix, *command, module, *words],
                cwd=scratch,
                env={
                    **os.environ,
                    "PYTHONPATH": f"{ROOT / 'tasks'}:{ROOT}",
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
        ended = _follow(processes, take)
    if ended.code and not may_fail:
        raise RuntimeError(f"the chief of {job.run} has failed:\n{ended.text}")
    return ended


def _follow(processes: Mapping[str, subprocess.Popen[str]], take: Callable[[str], None]) -> Ended:
    """Read the lines of the chief until it has ended; then kill the others."""
    chief = processes["chief"]
    lines = []
    for line in chief.stdout or ():
        lines.append((time.monotonic(), line))
        take(line)
    memory = {"chief": _peak(chief)}
    for name, process in processes.items():
        if process is not chief:
            os.kill(process.pid, signal.SIGKILL)  # a method of it would take its end
            memory[name] = _peak(process)
    return Ended(lines, chief.returncode, memory)


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
        virtual = [tf.config.LogicalDeviceConfiguration()] * devices
        tf.config.set_logical_device_configuration(cpu, virtual)
    runpy.run_module(sys.argv[0], run_name="__main__", alter_sys=True)


if __name__ == "__main__":
    main()
