"""What a slow network costs: two workers that mirror, each in a network namespace of its own.

The namespaces are joined by a pair of virtual interfaces that the kernel limits to a rate. Bytes
are those that the chief's interface sent, from the counters of the kernel; the worker sends as
many. They and the steps are counted between two progress lines, after warm-up.
"""

import argparse
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager, redirect_stdout
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from aerotrain.contract.job import Job
from aerotrain.contract.status import Progress
from aerotrain.standalone import prepare
from benchmarks.replicas import run_job
from benchmarks.report import ROOT, print_origin, print_report
from benchmarks.workloads import training_job

DIGITS = ROOT / "dags" / "models"
PORT = 2222
BATCH = 64
INTERFACE = "wire"
RECORDS = 1249  # of the digits' train split

#: Modes by name: the arguments of the training in which they differ.
MODES: Mapping[str, Mapping[str, Any]] = {
    "plain": {"batch_size": BATCH},
    "16-bit gradients": {"batch_size": BATCH, "gradient_dtype": "bfloat16"},
    "accumulation 4": {"batch_size": 4 * BATCH, "gradient_accumulation_steps": 4},
}


@dataclass(frozen=True)
class Mark:
    """The state of a training at a moment: seconds, steps, and bytes that the chief had sent."""

    seconds: float
    step: int
    sent: int


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument(
        "--quick", action="store_true", help="only 100 Mbit/s, and the modes that are compared"
    )
    quick = parser.parse_args().quick
    if os.geteuid() != 0 or not shutil.which("ip") or not shutil.which("tc"):
        sys.exit("this makes network namespaces, for which it needs root and iproute2 (ip and tc)")
    print_origin()
    rows = []
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        data = _digits(folder)
        for megabits, steps in ((100, 60),) if quick else ((1000, 200), (100, 60)):
            for mode in ("plain", "16-bit gradients") if quick else MODES:
                rows.append(_row(folder, data, megabits, steps, mode, MODES[mode]))
    sent = {(row["link, Mbit/s"], row["mode"]): row["bytes a step"] for row in rows}
    shares = {row["link, Mbit/s"]: row["share of link"] for row in rows if row["mode"] == "plain"}
    narrowest = min(shares)
    ratio = sent[narrowest, "16-bit gradients"] / sent[narrowest, "plain"]
    print_report(rows, {"bytes_16bit_over_plain": ratio, "share_of_link": shares[narrowest]})


def _digits(folder: Path) -> str:
    """The URL of the digits, prepared in ``folder``."""
    sys.path.insert(0, str(DIGITS))
    with redirect_stdout(sys.stderr):
        return prepare((folder / "store").as_uri(), folder / "scratch", "digits", shards=2)


def _row(
    folder: Path,
    data: str,
    megabits: int,
    steps: int,
    mode: str,
    arguments: Mapping[str, Any],
) -> dict[str, Any]:
    batch = arguments["batch_size"]
    job = training_job(
        (folder / "store").as_uri(),
        f"{megabits}-{mode.replace(' ', '-')}",
        "multi_worker_mirrored",
        {
            "model": "wide",
            "data": data,
            "epochs": -(-steps // -(-RECORDS // batch)),
            "steps_per_execution": 5,
            **arguments,
        },
    )
    first, *_, last = _marks(folder, job, megabits)
    done, seconds = last.step - first.step, last.seconds - first.seconds
    sent = last.sent - first.sent
    return {
        "link, Mbit/s": megabits,
        "mode": mode,
        "bytes a step": sent // done,
        "bytes an example": sent // (done * batch),
        "steps/s": done / seconds,
        "examples/s": done * batch / seconds,
        "share of link": sent * 8 / seconds / (megabits * 1e6),
    }


def _marks(folder: Path, job: Job, megabits: int) -> list[Mark]:
    """Train over a link of that rate; one mark for each progress line of the chief."""
    addresses = {name: f"{_host(index)}:{PORT}" for index, name in enumerate(job.names())}
    counter = f"/sys/class/net/{INTERFACE}/statistics/tx_bytes"
    marks = []
    with _namespaces(megabits) as spaces:

        def mark(line: str) -> None:
            if progress := Progress.parse(line):
                sent = _run("ip", "netns", "exec", spaces[0], "cat", counter)
                marks.append(Mark(time.monotonic(), progress.step, int(sent)))

        within = [("ip", "netns", "exec", space) for space in spaces]
        run_job(job, folder, addresses=addresses, within=within.__getitem__, take=mark)
    return marks


def _host(index: int) -> str:
    """An address that is reserved for documentation, so it conflicts with none (RFC 5737)."""
    return f"192.0.2.{index + 1}"


@contextmanager
def _namespaces(megabits: int) -> Iterator[list[str]]:
    """Two network namespaces, joined by a link of ``megabits`` a second in each direction."""
    spaces = [f"aerotrain-{os.getpid()}-{index}" for index in range(2)]
    with ExitStack() as stack:
        for space in spaces:
            _run("ip", "netns", "add", space)
            stack.callback(_run, "ip", "netns", "del", space)
        one, other = spaces
        peer = ("peer", "name", INTERFACE, "netns", other)
        _run("ip", "link", "add", INTERFACE, "netns", one, "type", "veth", *peer)
        for index, space in enumerate(spaces):
            within = ("ip", "-n", space)
            _run(*within, "addr", "add", f"{_host(index)}/24", "dev", INTERFACE)
            _run(*within, "link", "set", "lo", "up")
            _run(*within, "link", "set", INTERFACE, "up")
            bucket = ("tbf", "rate", f"{megabits}mbit", "burst", "256kb", "latency", "100ms")
            _run("tc", "-n", space, "qdisc", "add", "dev", INTERFACE, "root", *bucket)
        yield spaces


def _run(*words: str) -> str:
    return subprocess.run(words, check=True, capture_output=True, text=True).stdout


if __name__ == "__main__":
    main()
