"""Evaluate a trained model on every record of a split, and check metrics against thresholds."""

import math
from collections.abc import Mapping

from aerotrain.contract.errors import FinalError
from aerotrain.contract.steps import EvaluateArguments
from aerotrain.data.dataset import json_text, load_dataset
from aerotrain.replica import Replica
from aerotrain.store import open_store
from aerotrain.training.error_messages import errors_translated
from aerotrain.training.input.batches import batch_spec, every_record
from aerotrain.training.input.shards import download, split_of
from aerotrain.training.model.checks import no_such_metric
from aerotrain.training.model.code import UserCode
from aerotrain.training.model_manifest import ModelManifest
from aerotrain.training.steps.metric_state import numbers

#: The metrics' key in the store of the evaluation.
KEY = "metrics.json"


def run(replica: Replica) -> dict[str, float]:
    """Evaluate the model, and write the metrics to the store whether they pass or not.

    Returns:
        The model's metrics by name, the loss among them.

    Raises:
        FinalError: a metric is no finite number, or below its threshold, or a threshold names no
            metric.
    """
    arguments = EvaluateArguments.of(replica.job.arguments)
    metrics = measure(replica, arguments)
    failures = shortfalls(metrics, arguments.thresholds)
    document = {
        "split": arguments.split,
        "records": split_of(load_dataset(arguments.data), arguments.split).records,
        "metrics": metrics,
        "thresholds": dict(arguments.thresholds),
        "passed": not failures,
    }
    url = f"{replica.job.prefix}/{KEY}"
    open_store(replica.job.prefix).put(KEY, json_text(document).encode())
    print(" ".join(f"{name}={value:.4f}" for name, value in metrics.items()), flush=True)
    if failures:
        raise FinalError(f"{'; '.join(failures)}; all metrics are in {url}")
    return metrics


def measure(replica: Replica, arguments: EvaluateArguments) -> dict[str, float]:
    """The metrics over all records of the split, each once, with a smaller last batch."""
    trained = ModelManifest.load(arguments.model)
    dataset = load_dataset(arguments.data)
    code = UserCode.load(trained.module, trained.data)
    split = split_of(dataset, arguments.split)
    files = download(arguments.data, split.shards, replica.scratch)
    with errors_translated(code, dataset, arguments.data, arguments.split, replica.scratch):
        spec = batch_spec(dataset.schema, code.transform)
        model = trained.restore(code, spec, replica.scratch)
        batches = every_record(
            files,
            dataset.schema,
            code.transform,
            records=split.records,
            batch_size=arguments.batch_size,
        )
        return numbers(model.evaluate(batches, return_dict=True, verbose=0))


def shortfalls(metrics: Mapping[str, float], thresholds: Mapping[str, float]) -> list[str]:
    """One sentence for each metric that is no finite number, and for each threshold not met."""
    sentences = [
        f"{name} is {value}, no finite number: look for missing values in the records of the split"
        for name, value in metrics.items()
        if not math.isfinite(value)
    ]
    for name, least in thresholds.items():
        if name not in metrics:
            sentences.append(no_such_metric(name, list(metrics)))
        elif metrics[name] < least:
            sentences.append(
                f"{name} is {metrics[name]:.4f}, below the threshold of {least}: train longer, "
                "change the model, or lower the threshold"
            )
    return sentences
