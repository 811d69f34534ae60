"""How soon a promoted version answers, whether requests fail meanwhile, and how long answers take.

A store of S3 has two versions of a small model, which are promoted and rolled back in turn. The
server for development follows them, and so does ``aerotrain pull`` into a folder. Meanwhile one
record at a time is asked for by REST. The latencies are of the server for development,
and of calls of the same signature in this process.
"""

import argparse
import os
import random
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
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
from benchmarks.report import print_origin, print_report
from devtools.s3_server import s3_server

#: Requests a second by each of two clients, while versions change.
RATE = 50

_WIDTH, _BUCKET, _MODEL = 32, "benchmark", "model"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="fewer changes and requests")
    quick = parser.parse_args().quick
    print_origin()
    with tempfile.TemporaryDirectory() as name, s3_server(Path(name, "store")) as s3:
        s3.make_bucket(_BUCKET)
        os.environ.update(s3.environment)
        store = open_store(f"s3://{_BUCKET}/{_MODEL}/serving")
        call = export_two(store, Path(name))
        with serving(Path(name, "pulled")) as (endpoint, pulled):
            rows, figures = changes(store, endpoint, pulled, 4 if quick else 20)
            found, latency = answers(endpoint, call, seconds=3 if quick else 20)
    print_report(rows + found, figures | latency)


def export_two(store: Store, folder: Path) -> Callable[[np.ndarray], object]:
    """Publish versions 1 and 2, and return the signature of the second."""
    keras.utils.set_random_seed(0)
    schema = {"x": Feature("float32", (_WIDTH,))}
    layers = [keras.layers.Dense(256, activation="relu"), keras.layers.Dense(10)]
    model = keras.Sequential([keras.Input((_WIDTH,)), *layers])
    for version in (1, 2):
        model.layers[-1].bias.assign(tf.fill([10], 1000.0 * version))  # shows who answers
        Servable(model, lambda each: (each["x"], 0), schema).save(folder / str(version))
        outputs = {"predictions": model(example()["x"]).numpy()}
        write_requests(folder / str(version), _MODEL, example(), outputs)
        publish(store, folder / str(version), str(version), {})
    loaded = tf.saved_model.load(str(folder / "2"))
    signature = loaded.signatures["serving_default"]
    return lambda x: (loaded, signature(x=tf.constant(x))["predictions"].numpy())


@contextmanager
def serving(folder: Path) -> Iterator[tuple[Endpoint, Path]]:
    """A server, and a puller into ``folder``, in processes of their own."""
    command = [sys.executable, "-m", "aerotrain"]
    with reserved_ports(1) as [rest]:
        ports = ["--port", str(rest.number)]
        commands = [
            [*command, "serve", f"s3://{_BUCKET}", *ports],
            [*command, "pull", f"s3://{_BUCKET}/{_MODEL}/serving", str(folder)],
        ]
        quiet = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
        processes = [subprocess.Popen(each, **quiet) for each in commands]
        endpoint = Endpoint("127.0.0.1", rest.number, _MODEL)
        try:
            wait_until_ready(endpoint, 120, lambda: None)
            yield endpoint, folder
        finally:
            for each in processes:
                each.kill()
                each.wait()


def changes(
    store: Store, endpoint: Endpoint, pulled: Path, count: int
) -> tuple[list[dict[str, object]], dict[str, float]]:
    """Promote and roll back in turn under load, and time when the new version answers."""
    failed: list[AerotrainError] = []
    asked = [0]
    ended = threading.Event()

    def ask() -> None:
        with closing(Client(endpoint)) as client:
            while not ended.wait(1 / RATE):
                asked[0] += 1
                try:
                    client.predict(example())
                except AerotrainError as error:
                    failed.append(error)

    promote(store, 1, by="benchmark")
    threads = [threading.Thread(target=ask) for _ in range(2)]
    pauses = random.Random(0)
    times: dict[str, list[float]] = {"answer": [], "pulled": []}
    with closing(Client(endpoint)) as client:
        until(lambda: answering(client) == 1 and (pulled / "1").exists())
        for thread in threads:
            thread.start()
        for number in range(count):
            version = 1 + (number + 1) % 2
            time.sleep(pauses.uniform(0, POLL))  # anywhere between two looks at the alias
            if version == 2:
                promote(store, 2, by="benchmark")
            else:
                rollback(store, by="benchmark")
            began = time.monotonic()
            waiting = {
                "answer": lambda v=version: answering(client) == v,
                "pulled": lambda v=version: (pulled / str(v)).exists(),
            }
            while waiting:
                for name in [name for name, is_there in waiting.items() if is_there()]:
                    times[name].append(time.monotonic() - began)
                    del waiting[name]
                time.sleep(0.01)
    ended.set()
    for thread in threads:
        thread.join()
    rows: list[dict[str, object]] = [
        {"of": "promotion or rollback to its first answer, s", **shown(times["answer"])},
        {"of": "promotion or rollback to the whole folder, s", **shown(times["pulled"])},
        {"of": f"requests in {count} changes", "median": "", "p99": "", "most": asked[0]},
        {"of": "of which failed", "median": "", "p99": "", "most": len(failed)},
    ]
    return rows, {
        "change_seconds": median(times["answer"]),
        "longest_change_seconds": max(times["answer"]),
        "pull_seconds": median(times["pulled"]),
        "failed_requests": float(len(failed)),
    }


def answers(
    endpoint: Endpoint, call: Callable[[np.ndarray], object], *, seconds: float
) -> tuple[list[dict[str, object]], dict[str, float]]:
    """The latencies of one record by REST, and in this process."""
    call(example()["x"])
    direct = []
    for _ in range(round(RATE * seconds)):
        began = time.monotonic()
        call(example()["x"])
        direct.append(1000 * (time.monotonic() - began))
    rows: list[dict[str, object]] = [{"of": "one record in this process, ms", **shown(direct)}]
    taken = latencies(endpoint, [example()], rate=RATE, seconds=seconds)
    rows.append({"of": "one record by REST, ms", **shown(taken)})
    return rows, {f"rest_p{p}_ms": float(np.percentile(taken, p)) for p in (50, 99)}


def shown(values: list[float]) -> dict[str, object]:
    return {
        "median": round(median(values), 3),
        "p99": round(float(np.percentile(values, 99)), 3),
        "most": round(max(values), 3),
    }


def example() -> dict[str, np.ndarray]:
    return {"x": np.ones((1, _WIDTH), np.float32)}


def answering(client: Client) -> int:
    """The version whose bias is in the predictions."""
    [outputs] = client.predict(example()).values()
    return round(float(np.mean(outputs)) / 1000)


def until(is_true: Callable[[], bool]) -> None:
    while not is_true():
        time.sleep(0.01)


if __name__ == "__main__":
    main()
