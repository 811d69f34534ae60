"""How soon a promoted version answers, whether requests fail meanwhile, and how long answers take.

A store of S3 has two versions of a small model, which are promoted and rolled back in turn. The
server for development follows them, and so does ``aerotrain pull`` into a folder. Meanwhile one
record at a time is asked for by REST. The latencies are of the server for development,
and of calls of the same signature in this process.
"""

import os
import random
import subprocess
import sys
import threading
import time
from argparse import Namespace
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, contextmanager
from pathlib import Path
from statistics import median

import keras
import numpy as np
import tensorflow as tf

from aerotrain.contract.errors import AerotrainError
from aerotrain.data.dataset import Feature
from aerotrain.serving.alias import promote, rollback
from aerotrain.serving.pull import POLL
from aerotrain.serving.requests import write_requests
from aerotrain.serving.rest import Client, Endpoint
from aerotrain.serving.servable import Servable
from aerotrain.serving.serve_check import latencies, wait_until_ready
from aerotrain.store import Store, open_store, publish
from aerotrain.supervisor.ports import reserved_ports
from benchmarks.report import Report, run, seconds
from devtools.s3_server import s3_server

#: Requests a second by each of two clients, while versions change.
RATE, CLIENTS = 50, 2

WIDTH, BUCKET, MODEL = 32, "benchmark", "model"
EXAMPLE = {"x": np.ones((1, WIDTH), np.float32)}


def measure(given: Namespace, folder: Path) -> Report:
    """The times of changes under load, and the latencies of one record."""
    duration = 3 if given.quick else 20
    with s3_server(folder / "store") as s3:
        s3.make_bucket(BUCKET)
        os.environ.update(s3.environment)
        store = open_store(f"s3://{BUCKET}/{MODEL}/serving")
        call = export_two(store, folder)
        with serving(folder / "pulled") as endpoint:
            with asked(endpoint) as (sent, failed):
                count = 4 if given.quick else 20
                answered, pulled = changes(store, endpoint, folder / "pulled", count)
            call()
            direct = [1000 * seconds(call) for _ in range(round(RATE * duration))]
            rest = latencies(endpoint, [EXAMPLE], rate=RATE, seconds=duration)
    rows = [
        row("promotion or rollback to its first answer, s", answered),
        row("promotion or rollback to the whole folder, s", pulled),
        {"of": f"requests in {count} changes", "median": "", "p99": "", "most": len(sent)},
        {"of": "of which failed", "median": "", "p99": "", "most": len(failed)},
        row("one record in this process, ms", direct),
        row("one record by REST, ms", rest),
    ]
    return Report(
        rows,
        {
            "change_seconds": median(answered),
            "longest_change_seconds": max(answered),
            "pull_seconds": median(pulled),
            "failed_requests": float(len(failed)),
            "rest_p50_ms": float(np.percentile(rest, 50)),
            "rest_p99_ms": float(np.percentile(rest, 99)),
        },
    )


def row(of: str, values: Sequence[float]) -> dict[str, object]:
    shown = {"median": median(values), "p99": np.percentile(values, 99), "most": max(values)}
    return {"of": of, **{name: round(float(value), 3) for name, value in shown.items()}}


def export_two(store: Store, folder: Path) -> Callable[[], object]:
    """Publish versions 1 and 2, and return a call of the second's signature."""
    keras.utils.set_random_seed(0)
    schema = {"x": Feature("float32", (WIDTH,))}
    layers = [keras.layers.Dense(256, activation="relu"), keras.layers.Dense(10)]
    model = keras.Sequential([keras.Input((WIDTH,)), *layers])
    for version in (1, 2):
        model.layers[-1].bias.assign(tf.fill([10], 1000.0 * version))  # shows who answers
        Servable(model, lambda each: (each["x"], 0), schema).save(folder / str(version))
        outputs = {"predictions": model(EXAMPLE["x"]).numpy()}
        write_requests(folder / str(version), MODEL, EXAMPLE, outputs)
        publish(store, folder / str(version), str(version), {})
    loaded = tf.saved_model.load(str(folder / "2"))
    signature = loaded.signatures["serving_default"]
    return lambda: (loaded, signature(x=tf.constant(EXAMPLE["x"]))["predictions"].numpy())


@contextmanager
def serving(folder: Path) -> Iterator[Endpoint]:
    """A server, and a puller into ``folder``, in processes of their own."""
    with reserved_ports(1) as [rest]:
        commands = [
            ["serve", f"s3://{BUCKET}", "--port", str(rest.number)],
            ["pull", f"s3://{BUCKET}/{MODEL}/serving", str(folder)],
        ]
        processes = [
            subprocess.Popen([sys.executable, "-m", "aerotrain", *words], stderr=subprocess.DEVNULL)
            for words in commands
        ]
        endpoint = Endpoint("127.0.0.1", rest.number, MODEL)
        try:
            wait_until_ready(endpoint, 120, lambda: None)
            yield endpoint
        finally:
            for each in processes:
                each.kill()
                each.wait()


@contextmanager
def asked(endpoint: Endpoint) -> Iterator[tuple[list[None], list[AerotrainError]]]:
    """Clients that send one record after another during the block; what was sent, and failed."""
    sent: list[None] = []
    failed: list[AerotrainError] = []
    ended = threading.Event()

    def ask() -> None:
        with closing(Client(endpoint)) as client:
            while not ended.wait(1 / RATE):
                sent.append(None)
                try:
                    client.predict(EXAMPLE)
                except AerotrainError as error:
                    failed.append(error)

    threads = [threading.Thread(target=ask) for _ in range(CLIENTS)]
    for thread in threads:
        thread.start()
    yield sent, failed
    ended.set()
    for thread in threads:
        thread.join()


def changes(
    store: Store, endpoint: Endpoint, folder: Path, count: int
) -> tuple[list[float], list[float]]:
    """Promote and roll back in turn; the seconds until each answers, and is in ``folder``."""
    pauses = random.Random(0)
    answered: list[float] = []
    pulled: list[float] = []
    with closing(Client(endpoint)) as client:

        def answers(version: int) -> bool:
            """Whether the bias of that version is in the predictions."""
            [outputs] = client.predict(EXAMPLE).values()
            return round(float(np.mean(outputs)) / 1000) == version

        for number in range(1 + count):  # the first one starts the server
            version = 1 + number % 2
            time.sleep(pauses.uniform(0, POLL))  # anywhere between two looks at the alias
            if number and version == 1:
                rollback(store, by="benchmark")
            else:
                promote(store, version, by="benchmark")
            began = time.monotonic()
            ends: list[float | None] = [None, None]
            while None in ends:
                found = (answers(version), (folder / str(version)).exists())
                now = time.monotonic() - began
                ends = [
                    end or (now if is_there else None)
                    for end, is_there in zip(ends, found, strict=True)
                ]
                time.sleep(0.01)
            if number:
                answered.append(ends[0] or 0.0)
                pulled.append(ends[1] or 0.0)
    return answered, pulled


if __name__ == "__main__":
    run(measure, __doc__)
