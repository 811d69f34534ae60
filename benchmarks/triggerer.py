"""What following jobs costs a triggerer: ``python -m benchmarks.triggerer``.

Each job has a chief, 500 workers and 2 ps. The cluster is the tests' double, in a process of its
own, with pods that are only imagined. All triggers run in the event loop of this process, as in a
triggerer. An event is a pod whose container ended; an action is the trigger's own event, on which
Airflow resumes the task. One synchronous job of 1,000 workers is launched, loses 100 of them at
once, and restarts all. In between each chief logs its progress, as in a training, and all logs
are read.
"""

import asyncio
import gc
import json
import multiprocessing
import os
import resource
import statistics
import subprocess
import sys
import time
import urllib.request
from argparse import Namespace
from collections import Counter
from collections.abc import Coroutine, Iterator, Mapping
from concurrent.futures import ProcessPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil

from aerotrain.contract.job import Job
from aerotrain.launch import driver
from aerotrain_airflow.kubernetes.backend import KubernetesBackend
from aerotrain_airflow.kubernetes.lifecycle import owner_of
from aerotrain_airflow.kubernetes.plan import PodSettings, plan_pods
from benchmarks.report import ROOT, Report, run

CONN_ID = "triggerer_benchmark"
WORKERS = 500

#: How jobs end, in turn: the pod, its new state, and the trigger's outcome.
ENDS = (
    ("worker-17", "out_of_memory", [], "lost"),
    ("chief", "exited", [0], "succeeded"),
    ("ps-1", "exited", [65, "the label 7 is outside 0 to 3"], "failed"),
)

#: The most jobs that are ended, one after another: the deletion of 503 pods takes seconds.
ENDED = 20

_DESCRIBED = {
    "module": "aerotrain.training.train",
    "store": "s3://bucket/pipeline",
    "run": "run",
    "task": "train",
}

#: Seconds between two checks of whether the event loop responds, and between two lines of a chief.
LOOK_EVERY, LINE_EVERY = 0.02, 5.0

#: The figures, and what each is.
MEANINGS = {
    "taken_up_seconds": "triggers begin until all follow, s",
    "taken_up_cpu": "the same of one job, s of CPU",
    "memory_per_job": "memory of one job followed, MiB",
    "memory_peak": "memory of the process at its highest, MiB",
    "cpu_percent": "CPU of all while they train, % of a core",
    "requests_per_minute": "requests of one job while it trains, a minute",
    "end_cpu": "CPU from event to action, mean, s",
    "event_to_action_median": "event to action, median, s",
    "event_to_action_max": "event to action, longest, s",
    "loop_blocked_begin": "longest that the event loop was busy, at the begin, s",
    "loop_blocked_later": "longest that the event loop was busy, later, s",
    "launch_seconds": "a job of 1,000 workers: its launch, s",
    "restart_seconds": "the same: from the preemption of 100 until all are restarted, s",
    "restart_cpu": "the same, s of CPU",
    "launch_and_restart_requests": "requests for both, for each replica",
    "loop_blocked_large": "longest that the event loop was busy meanwhile, s",
}

#: The workers of the one large job, and how many of them are preempted.
LARGE, PREEMPTED = 1000, 100


@dataclass
class Double:
    """The double, in its own process."""

    url: str
    kubeconfig: str

    def do(self, method: str, **given: Any) -> Any:
        body = json.dumps(given).encode()
        request = urllib.request.Request(f"{self.url}/double/{method}", data=body)
        with urllib.request.urlopen(request) as answer:
            return json.load(answer)

    async def ask(self, method: str, **given: Any) -> Any:
        return await asyncio.to_thread(self.do, method, **given)


@dataclass
class Loop:
    """How long the event loop was blocked by one thing at a time."""

    longest: float = 0.0

    async def look(self) -> None:
        while True:
            began = time.monotonic()
            await asyncio.sleep(LOOK_EVERY)
            self.longest = max(self.longest, time.monotonic() - began - LOOK_EVERY)

    def take(self) -> float:
        """The longest block so far; resets it."""
        longest, self.longest = self.longest, 0.0
        return longest


def measure(given: Namespace, _folder: Path) -> Report:
    """The costs of 100 jobs, with 330 s in which they only train."""
    jobs, rest = (5, 5.0) if given.quick else (100, 330.0)
    spawned = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(1, mp_context=spawned) as other, _double() as double:
        other.submit(_fill, double, 1 + jobs).result()
        connection = {"conn_type": "kubernetes", "extra": {"kube_config_path": double.kubeconfig}}
        os.environ[f"AIRFLOW_CONN_{CONN_ID.upper()}"] = json.dumps(connection)
        figures = asyncio.run(_follow(double, jobs, rest))
        figures |= asyncio.run(_large(double, LARGE // 5 if given.quick else LARGE))
    rows = [{"of": of, "is": figures[name]} for name, of in MEANINGS.items()]
    return Report(rows, {"jobs": jobs, "workers": WORKERS, **figures})


@contextmanager
def _double() -> Iterator[Double]:
    roots = os.pathsep.join(str(ROOT / each) for each in ("tasks", "plugins", "tests"))
    process = subprocess.Popen(
        [sys.executable, "-m", "support.kubernetes_double"],
        env={**os.environ, "PYTHONPATH": roots},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    )
    with process:
        assert process.stdin
        assert process.stdout
        try:
            yield Double(**json.loads(process.stdout.readline()))
        finally:
            process.stdin.close()


def _fill(double: Double, jobs: int) -> None:
    """Create the objects of all jobs, without an HTTP request for each of them."""
    settings = PodSettings(namespace="default", image="aerotrain:1", store_secret="store")
    for number in range(jobs):
        described = {
            **_DESCRIBED,
            "name": f"train-{number}",
            "strategy": "parameter_server",
            "restarts": {"memory": 0},  # a restart by the trigger sends no event
            "replicas": [
                {"role": "chief"},
                {"role": "worker", "count": WORKERS},
                {"role": "ps", "count": 2},
            ],
        }
        plan = plan_pods(Job.from_dict(described), "try-1", settings)
        double.do("create", owner=owner_of(plan, "try-1"), others=plan.others)


async def _followed(handle: str) -> tuple[float, Mapping[str, Any]]:
    """Run a trigger to its event; returns the time of that, and the event."""
    from aerotrain_airflow.kubernetes.trigger import JobTrigger

    trigger = JobTrigger(handle=handle, conn_id=CONN_ID, holder="try-1")
    async for event in trigger.run():
        return time.monotonic(), event.payload
    raise AssertionError("the trigger ended without an event")


async def _follow(double: Double, jobs: int, rest: float) -> dict[str, float]:
    """Run the triggers of all jobs from start to end."""

    def first_event(number: int) -> Coroutine[Any, Any, tuple[float, Mapping[str, Any]]]:
        return _followed(f"default/train-{number}/try-1")

    async def watching(count: int) -> None:
        while await double.ask("watching") < count:
            await asyncio.sleep(0.05)

    async def end(number: int) -> float:
        """End one job, and wait for the deletion of its pods; the seconds until its trigger acted.

        Without the wait, the figure would be that of the double, which still deletes the last job.
        """
        pod, state, arguments, expected = ENDS[number % len(ENDS)]
        name = f"train-{number}-{pod}"
        happened = await double.ask("become", name=name, state=state, arguments=arguments)
        when, event = await acted[number]
        assert event["ended"]["state"] == expected, event
        while await double.ask("pods", job=f"train-{number}"):
            await asyncio.sleep(0.1)
        return when - happened

    loop = Loop()
    looking = asyncio.create_task(loop.look())
    # The imports of a triggerer's first trigger are not measured.
    warm = asyncio.create_task(first_event(jobs))
    await watching(1)
    before = _memory()
    loop.take()
    began, cpu = time.monotonic(), time.process_time()
    acted = [asyncio.create_task(first_event(number)) for number in range(jobs)]
    await watching(1 + jobs)
    figures = {"taken_up_seconds": time.monotonic() - began}
    await asyncio.sleep(2)  # the streams of the logs are opened after the watches
    figures["taken_up_cpu"] = (time.process_time() - cpu) / jobs
    figures["loop_blocked_begin"] = loop.take()
    figures["memory_per_job"] = (_memory() - before) / jobs
    loop.take()  # to measure memory, all garbage is collected
    figures |= await _idle(double, jobs, rest)
    cpu = time.process_time()
    ends = min(jobs, ENDED)
    late = [await end(number) for number in range(ends)]
    figures["end_cpu"] = (time.process_time() - cpu) / ends
    looking.cancel()
    warm.cancel()
    return {
        **figures,
        "event_to_action_median": statistics.median(late),
        "event_to_action_max": max(late),
        "loop_blocked_later": loop.take(),
        "memory_peak": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024,
    }


async def _large(double: Double, workers: int) -> dict[str, float]:
    """Launch a synchronous job, preempt some of its workers at once, and end it once restarted."""
    settings = PodSettings(namespace="default", image="aerotrain:1", store_secret="store")
    backend = KubernetesBackend(settings, CONN_ID, "try-1")
    roles = [{"role": "chief"}, {"role": "worker", "count": workers}]
    job = {**_DESCRIBED, "name": "large", "strategy": "multi_worker_mirrored", "replicas": roles}
    loop, first = Loop(), len(await double.ask("requests"))
    looking = asyncio.create_task(loop.look())
    began = time.monotonic()
    handle = await driver.start(backend, backend.plan(Job.from_dict(job), "try-1"))
    figures = {"launch_seconds": time.monotonic() - began}

    following = asyncio.create_task(_followed(handle))
    while not await double.ask("watching"):
        await asyncio.sleep(0.05)
    began, cpu = time.monotonic(), time.process_time()
    for index in range(PREEMPTED):
        name = f"large-worker-{index}"
        await double.ask("become", name=name, state="exited", arguments=[143])
    while not await double.ask("restarted", job="large", replicas=workers + 1):
        await asyncio.sleep(0.1)
    figures["restart_seconds"] = time.monotonic() - began
    figures["restart_cpu"] = time.process_time() - cpu
    asked = len(await double.ask("requests", after=first))
    figures["launch_and_restart_requests"] = asked / (workers + 1)
    figures["loop_blocked_large"] = loop.take()
    looking.cancel()
    await double.ask("become", name="large-chief-r1", state="exited", arguments=[0])
    _, event = await following
    assert event["ended"]["state"] == "succeeded", event
    return figures


async def _idle(double: Double, jobs: int, seconds: float) -> dict[str, float]:
    """The cost of waiting while every chief logs its progress."""

    def log() -> None:
        for number in range(jobs):
            line = f"progress step={time.monotonic():.0f} steps=100000 loss=0.2310"
            double.do("say", name=f"train-{number}-chief", lines=[line])

    first = len(await double.ask("requests"))
    cpu, began = time.process_time(), time.monotonic()
    while time.monotonic() < began + seconds:
        await asyncio.to_thread(log)
        await asyncio.sleep(LINE_EVERY)
    taken, passed = time.process_time() - cpu, time.monotonic() - began
    asked = await double.ask("requests", after=first)
    print(f"{passed:.0f} s:", Counter(f"{each['verb']} {each['resource']}" for each in asked))
    return {
        "cpu_percent": 100 * taken / passed,
        "requests_per_minute": 60 * len(asked) / passed / jobs,
    }


def _memory() -> float:
    gc.collect()
    return psutil.Process().memory_info().rss / 2**20


if __name__ == "__main__":
    run(measure, __doc__)
