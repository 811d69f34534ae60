"""What a slow network costs: two workers that mirror, each in a network namespace of its own.

The namespaces are joined by a switch, and the kernel limits the link of each to a rate. Bytes
are those that the chief's interface sent, from the counters of the kernel; the worker sends as
many. They and the steps are counted between two progress lines, after warm-up.
"""

import os
import shutil
import subprocess
import sys
import time
from argparse import Namespace
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import psutil

from aerotrain.contract.job import Job
from aerotrain.contract.status import Progress
from benchmarks.replicas import run_job
from benchmarks.report import Report, in_turns, ratios, run
from benchmarks.workloads import Jobs

PORT, BATCH, INTERFACE = 2222, 64, "wire"
RECORDS = 1249  # of the digits' train split

PLAIN, BITS16 = "plain", "16-bit gradients"
BYTES, SHARE = "bytes a step", "share of link"

#: Modes by name: the arguments of the training in which they differ.
MODES: Mapping[str, Mapping[str, Any]] = {
    PLAIN: {"batch_size": BATCH},
    BITS16: {"batch_size": BATCH, "gradient_dtype": "bfloat16"},
    "accumulation 4": {"batch_size": 4 * BATCH, "gradient_accumulation_steps": 4},
}

#: The rate of the link, and the steps that are trained.
MEGABITS, STEPS = 100, 60


@dataclass(frozen=True)
class Mark:
    """The state of a training at a moment: seconds, steps, and what the chief had sent and used.

    ``sent`` is in bytes, and ``cpu`` in seconds.
    """

    seconds: float
    step: int
    sent: int
    cpu: float


def measure(given: Namespace, folder: Path) -> Report:
    """A row for each mode, of its rounds."""
    if os.geteuid() != 0 or not shutil.which("ip") or not shutil.which("tc"):
        sys.exit("this makes network namespaces, for which it needs root and iproute2 (ip and tc)")
    jobs = Jobs(folder)
    modes = (PLAIN, BITS16) if given.quick else MODES
    contestants = {mode: partial(_rates, jobs, folder, mode) for mode in modes}
    results = in_turns(contestants, 1 if given.quick else 3)
    rounds = {
        mode: {name: [each[name] for each in results[mode]] for name in results[mode][0]}
        for mode in modes
    }
    return Report(
        [{"link, Mbit/s": MEGABITS, "mode": mode, **rounds[mode]} for mode in modes],
        {
            "bytes_16bit_over_plain": ratios(*(rounds[mode][BYTES] for mode in (BITS16, PLAIN))),
            "share_of_link": rounds[PLAIN][SHARE],
            "share_of_link_16bit": rounds[BITS16][SHARE],
        },
    )


def _rates(jobs: Jobs, folder: Path, mode: str) -> dict[str, float]:
    """What one training in that mode sends, and how fast."""
    batch = MODES[mode]["batch_size"]
    arguments = {
        "model": "wide",
        "data": jobs.data("digits", shards=2),
        "epochs": -(-STEPS // -(-RECORDS // batch)),
        "steps_per_execution": 5,
        **MODES[mode],
    }
    first, *_, last = marks_of(jobs.train("multi_worker_mirrored", arguments), folder)
    done, seconds = last.step - first.step, last.seconds - first.seconds
    sent = last.sent - first.sent
    return {
        BYTES: sent // done,
        "bytes an example": sent // (done * batch),
        "steps/s": done / seconds,
        "examples/s": done * batch / seconds,
        SHARE: sent * 8 / seconds / (MEGABITS * 1e6),
    }


def marks_of(job: Job, folder: Path) -> list[Mark]:
    """Train with a link for each replica; one mark for each progress line of the chief."""
    names = list(job.names())
    addresses = {name: f"{_host(index)}:{PORT}" for index, name in enumerate(names)}
    counter = f"/sys/class/net/{INTERFACE}/statistics/tx_bytes"
    marks = []
    with _namespaces(len(names)) as spaces:
        within = [("ip", "netns", "exec", space) for space in spaces]

        def mark(line: str) -> None:
            if progress := Progress.parse(line):
                sent = int(_run(*within[0], "cat", counter))
                pids = _run("ip", "netns", "pids", spaces[0]).split()
                times = [psutil.Process(int(pid)).cpu_times() for pid in pids]
                cpu = sum(each.user + each.system for each in times)
                marks.append(Mark(time.monotonic(), progress.step, sent, cpu))

        run_job(job, folder, addresses=addresses, within=within, take=mark)
    return marks


def _host(index: int) -> str:
    """An address that is reserved for documentation, so it conflicts with none (RFC 5737)."""
    return f"192.0.2.{index + 1}"


@contextmanager
def _namespaces(count: int) -> Iterator[list[str]]:
    """Network namespaces, each with a link to a switch that has the rate in both directions."""
    switch, *spaces = [f"aerotrain-{os.getpid()}-{index}" for index in range(count + 1)]
    with ExitStack() as stack:
        for space in (switch, *spaces):
            _run("ip", "netns", "add", space)
            stack.callback(_run, "ip", "netns", "del", space)
        _run("ip", "-n", switch, "link", "add", "switch", "type", "bridge")
        _run("ip", "-n", switch, "link", "set", "switch", "up")
        for index, space in enumerate(spaces):
            port = f"port{index}"
            peer = ("peer", "name", port, "netns", switch)
            _run("ip", "link", "add", INTERFACE, "netns", space, "type", "veth", *peer)
            _run("ip", "-n", space, "addr", "add", f"{_host(index)}/24", "dev", INTERFACE)
            _run("ip", "-n", switch, "link", "set", port, "master", "switch")
            for where, device in ((space, "lo"), (space, INTERFACE), (switch, port)):
                _run("ip", "-n", where, "link", "set", device, "up")
            bucket = ("tbf", "rate", f"{MEGABITS}mbit", "burst", "256kb", "latency", "100ms")
            for where, device in ((space, INTERFACE), (switch, port)):
                _run("tc", "-n", where, "qdisc", "add", "dev", device, "root", *bucket)
        yield spaces


def _run(*words: str) -> str:
    return subprocess.run(words, check=True, capture_output=True, text=True).stdout


if __name__ == "__main__":
    run(measure, __doc__)
