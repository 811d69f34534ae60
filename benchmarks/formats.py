"""Exports of one model in several formats: their sizes, agreement and latencies."""

import sys
import time
from collections.abc import Callable
from contextlib import redirect_stdout
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
import tensorflow as tf

from aerotrain.contract.steps import Format
from aerotrain.serving.formats.converter import runtime
from aerotrain.standalone import prepare, run_step
from aerotrain.store import fetch, open_store
from benchmarks.report import ROOT, in_turns

_BATCH = 256


def formats(folder: Path, *, calls: int) -> tuple[list[dict[str, object]], dict[str, float]]:
    """A row for each format of a network of the digits, and figures.

    Sizes are of the file, and of the SavedModel without its requests and ``model.keras``. The
    agreement is the share of the records of the test split of which the most probable class is that
    of the trained model. Latencies are of calls in this process, for one record and for 256.
    """
    with redirect_stdout(sys.stderr):  # stdout is for the report alone
        versions = _exported(folder)
    image = np.random.default_rng(0).integers(0, 16, (_BATCH, 8, 8)).astype(np.uint8)
    sizes, agreements, predictors = {}, {}, {}
    for numbers, (path, about) in versions.items():
        for name, known in about["formats"].items():
            title = f"{name}, {numbers}"
            sizes[title], agreements[title] = known["bytes"], known["same_class"]
            predictors[title] = runtime(Format(name), path / known["file"]).predict
    path, _ = versions["float"]
    loaded = tf.saved_model.load(str(path))
    weights = [path / "saved_model.pb", *(path / "variables").iterdir()]
    sizes["savedmodel, float"] = sum(each.stat().st_size for each in weights)
    agreements["savedmodel, float"] = 1.0
    predictors["savedmodel, float"] = lambda inputs: loaded.signatures["serving_default"](
        image=tf.constant(inputs["image"])
    )
    one, many = (
        in_turns(
            {
                title: partial(_milliseconds, predict, {"image": image[:count]}, calls)
                for title, predict in predictors.items()
            },
            rounds=5,
        )
        for count in (1, _BATCH)
    )
    rows: list[dict[str, object]] = [
        {
            "format": title,
            "kB": round(sizes[title] / 1000, 1),
            "agreement": f"{agreements[title]:.1%}",
            "one record, ms": round(median(one[title]), 3),
            "256 records, ms": round(median(many[title]), 3),
        }
        for title in sizes
    ]
    figures = {}
    for title in sizes:
        name = title.replace(", ", "_")
        figures[f"{name}_bytes"] = float(sizes[title])
        figures[f"{name}_agreement"] = agreements[title]
        figures[f"{name}_over_savedmodel"] = median(one[title]) / median(one["savedmodel, float"])
    return rows, figures


def _exported(folder: Path) -> dict[str, tuple[Path, Any]]:
    """Train the digits, and export them with and without quantization: folders and manifests."""
    sys.path.insert(0, str(ROOT / "dags" / "models"))
    store, scratch = (folder / "formats").as_uri(), folder / "scratch"
    data = prepare(store, scratch, "digits")
    step = partial(run_step, store=store, scratch=scratch, data=data)
    model = step("train", model="digits", epochs=5)
    versions = {}
    for numbers, quantize in (("float", None), ("int8", "int8")):
        given = {"formats": [Format.LITERT, Format.ONNX], "quantize": quantize, "records": None}
        url = step("export", run=numbers, model=model, keras_file=False, **given)
        parent, _, number = url.rpartition("/")
        path = folder / "versions" / number
        versions[numbers] = path, fetch(open_store(parent), number, path).about
    return versions


def _milliseconds(predict: Callable[[Any], Any], inputs: Any, calls: int) -> float:
    """The median time of a call."""
    predict(inputs)
    taken = []
    for _ in range(calls):
        began = time.perf_counter()
        predict(inputs)
        taken.append(1000 * (time.perf_counter() - began))
    return median(taken)
