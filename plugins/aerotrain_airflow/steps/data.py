"""The steps that read a source by partitions: they prepare a data set, or predict."""

from collections.abc import Mapping, Sequence
from typing import Any

from airflow.sdk import TaskGroup, XComArg

from aerotrain_airflow.operators.preflight import PreflightOperator
from aerotrain_airflow.params import WHERE, RunParam
from aerotrain_airflow.steps.jobs import PodTemplate, by_partitions, chief, separated

_PARTITION_DOC = (
    "Writes the records of the source as TFRecord shards. **Skipped** if this very input was "
    "prepared before: then there is nothing to write, and `finalize` returns that data set."
)

_PREDICTION_DOC = (
    "Writes the predictions of the source as Parquet. **Skipped** if this model has predicted this "
    "very input before: then `finalize` returns those predictions."
)


def prepare(
    source: str | Mapping[str, Any],
    *,
    splits: Mapping[str, float] | None = None,
    pool: str | None = None,
    group_id: str = "prepare",
    **other: Any,
) -> XComArg:
    """Turn a source into a finalized data set, once per state of the input.

    ``source`` is a module in the pipeline's ``models`` folder with ``list_parts`` and
    ``read_part``, or a description of files by kind, such as ``{"kind": "parquet", "url":
    "s3://bucket/table/dt={{ ds }}/"}``; ``aerotrain.data.sources`` defines the kinds. ``other`` are
    arguments of ``aerotrain.contract.preparing.PlanArguments``, such as ``key`` or ``split_by``,
    and of Airflow's operators, such as ``queue``. Of these, ``pool`` limits how many partitions
    are written at once, and ``outlets`` are assets that the data set updates. The tasks are in a
    group named ``group_id``: another one for a second data set, which needs a ``name`` too. The
    first task checks this step and all later ones.

    Returns:
        The URL of the data set.
    """
    rules, operator = separated(other)
    plan_arguments: dict[str, Any] = {
        "source": _described(source),
        "shards": RunParam("shards"),
        "allow_drift": RunParam("allow_drift"),
        **rules,
    }
    if splits is not None:
        plan_arguments["splits"] = dict(splits)
    with TaskGroup(group_id):
        check = PreflightOperator(task_id="check", check_model=RunParam("check_model"), **WHERE)
        plan, dataset = by_partitions(
            "aerotrain.data.prepare",
            plan_arguments,
            "dataset",
            doc=_PARTITION_DOC,
            pool=pool,
            operator=operator,
        )
        check >> plan
    return dataset


def predict(
    model: XComArg | str,
    source: str | Mapping[str, Any],
    *,
    keep: Sequence[str] = (),
    dag_id: str | None = None,
    pool: str | None = None,
    group_id: str = "predict",
    environment: Mapping[str, str] | None = None,
    pod: PodTemplate | None = None,
    **other: Any,
) -> XComArg:
    """Predict every record of a source by an exported model, and write the predictions as Parquet.

    ``model`` is the URL of a version, as ``export`` returns it, or ``"serving"``: that which the
    DAG ``dag_id`` serves, by default this one. ``source`` is described as for ``prepare``. The
    columns ``keep`` are copied to the predictions. ``group_id`` is the group of the tasks.
    ``other`` are arguments of ``aerotrain.contract.predicting.PredictArguments``, such as
    ``batch_size``, and of Airflow's operators as for ``prepare``; ``environment`` is as for
    ``train``, and ``pod`` is the template of the pod of each task.

    Returns:
        The URL of a folder of Parquet files with one row for each record.
    """
    rules, operator = separated(other)
    arguments = {
        "model": model,
        "source": _described(source),
        "keep": list(keep),
        "dag_id": dag_id,
        **rules,
    }
    with TaskGroup(group_id):
        _, predictions = by_partitions(
            "aerotrain.prediction",
            arguments,
            "predictions",
            doc=_PREDICTION_DOC,
            pool=pool,
            operator=operator,
            replicas=[chief(environment, pod)],
        )
    return predictions


def _described(source: str | Mapping[str, Any]) -> dict[str, Any]:
    """The description of a source, which may be a module."""
    return {"kind": "python", "module": source} if isinstance(source, str) else dict(source)
