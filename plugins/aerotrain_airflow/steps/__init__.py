"""The steps of a pipeline, as functions for a DAG file.

Each returns the output of its task, which is passed to the next step::

    shards = prepare("digits")
    model = train("digits", shards)
    evaluate(model, shards) >> export(model, shards)

The steps read the options of a run (strategy, epochs, threshold, …) from the DAG's params, which
``aerotrain_airflow.params.training_params`` creates.
"""

from aerotrain_airflow.steps.release import (
    approve,
    at_least,
    at_most,
    better_than_trivial,
    bucket,
    evaluate,
    export,
    no_worse,
    promote,
    rollback,
    serve_check,
)
from aerotrain_airflow.steps.training import predict, prepare, train

__all__ = [
    "approve",
    "at_least",
    "at_most",
    "better_than_trivial",
    "bucket",
    "evaluate",
    "export",
    "no_worse",
    "predict",
    "prepare",
    "promote",
    "rollback",
    "serve_check",
    "train",
]
