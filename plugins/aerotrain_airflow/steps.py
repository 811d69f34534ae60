"""The steps of a pipeline, as functions for a DAG file.

Each returns the output of its task, which is passed to the next step::

    shards = prepare("digits")
    model = train("digits", shards)
    evaluate(model, shards) >> export(model, shards)

The steps read the options of a run (strategy, epochs, threshold, …) from the DAG's params, which
``aerotrain_airflow.params.training_params`` creates.
"""

from collections.abc import Mapping, Sequence
from typing import Any

from airflow.sdk import TaskGroup, XComArg

from aerotrain.contract.errors import SpecError
from aerotrain.contract.formats import Format
from aerotrain.contract.gate import SERVING
from aerotrain_airflow.approval import ModelApprovalOperator
from aerotrain_airflow.backends.kubernetes.serving import server_pod
from aerotrain_airflow.backends.kubernetes.template import merge
from aerotrain_airflow.gate import at_least
from aerotrain_airflow.operator import JobOperator
from aerotrain_airflow.params import (
    SET_BY_DAG,
    TRAINING_STEP,
    WHERE,
    RunParam,
    RunResources,
    RunSwitch,
)
from aerotrain_airflow.partitions import by_partitions, separated
from aerotrain_airflow.preflight import PreflightOperator
from aerotrain_airflow.promotion import PromoteOperator, RollbackOperator

#: What the steps of a model read besides, so that their results may be those of an earlier run.
_REUSE: dict[str, Any] = {"reuse": RunParam("reuse")}

_PARTITION_DOC = (
    "Writes the records of the source as TFRecord shards. **Skipped** if this very input was "
    "prepared before: then there is nothing to write, and `finalize` returns that data set."
)

_PREDICTION_DOC = (
    "Writes the predictions of the source as Parquet. **Skipped** if this model has predicted this "
    "very input before: then `finalize` returns those predictions."
)

PodTemplate = Mapping[str, Any]


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


def _described(source: str | Mapping[str, Any]) -> dict[str, Any]:
    """The description of a source, which may be a module."""
    return {"kind": "python", "module": source} if isinstance(source, str) else dict(source)


def train(
    module: str,
    data: XComArg | str,
    *,
    hparams: Mapping[str, Any] | None = None,
    task_id: str = "train",
    environment: Mapping[str, str] | None = None,
    pods: Mapping[str, PodTemplate] | None = None,
    **other: Any,
) -> XComArg:
    """Train the model that ``module``'s ``build_model`` returns on the data set ``data``.

    ``hparams`` is passed to ``build_model`` together with the learning rate and the hparams of the
    form, which take precedence; a value may be a ``RunParam`` of the DAG. ``environment`` adds
    variables to the replicas, such as ``{"TF_USE_LEGACY_KERAS": "1"}`` for a tf_keras model, which
    ``evaluate`` and ``export`` then need too. ``pods`` are pod templates by role, for settings
    beyond resources, such as ``{"worker": {"spec": {"nodeSelector": {"pool": "gpu"}}}}``.
    ``other`` are options of the training that the form does not have, such as ``class_weight`` and
    ``start_from``, and any other arguments of the operator, such as ``pool``.

    ``start_from`` names a model from which variables of equal path and shape, and rows of
    embeddings by word, get their first values: ``"serving"``, the version that this pipeline
    serves; the URL of a trained model or of an exported version; or the id of a run of this DAG.

    Returns:
        The URL of the trained model.
    """
    options = {name: other.pop(name) for name in SET_BY_DAG if name in other}
    return JobOperator(
        task_id=task_id,
        **WHERE,
        **_REUSE,
        **other,
        job={
            "module": "aerotrain.train",
            "strategy": RunParam("strategy"),
            "deadlines": {"progress_timeout": RunParam("progress_timeout")},
            "restarts": RunParam("restarts"),
            "min_workers": RunParam("min_workers"),
            "replicas": _replicas_of_training(environment or {}, pods or {}),
            "arguments": {
                "model": module,
                "data": data,
                **{name: RunParam(name) for name in TRAINING_STEP},
                **options,
                "hparams": [
                    {"learning_rate": RunParam("learning_rate"), **(hparams or {})},
                    RunParam("hparams"),
                ],
            },
        },
    ).output


def _replicas_of_training(
    environment: Mapping[str, str], pods: Mapping[str, PodTemplate]
) -> list[dict[str, Any]]:
    """The replicas of a training, of which the form gives the counts and the resources."""
    counts = {
        "chief": 1,
        "worker": RunParam("workers"),
        "ps": RunParam("ps"),
        "evaluator": RunSwitch("evaluator"),
        "input": RunParam("data_workers"),
        "dispatcher": RunSwitch("data_workers"),
    }
    return [
        {
            "role": role,
            "count": count,
            "resources": RunResources("resources", role),
            "environment": dict(environment),
            "pod": dict(pods.get(role, {})),
        }
        for role, count in counts.items()
    ]


def evaluate(
    model: XComArg | str,
    data: XComArg | str,
    *,
    metric: str = "accuracy",
    gate: Sequence[Mapping[str, Any]] | None = None,
    baseline: str = SERVING,
    first_run: str | None = None,
    on_fail: str = "fail",
    group: str | None = None,
    model_format: str | None = None,
    task_id: str = "evaluate",
    environment: Mapping[str, str] | None = None,
    pod: PodTemplate | None = None,
    **other: Any,
) -> XComArg:
    """Evaluate the model on every record of the test split, and refuse it by the rules of ``gate``.

    Without ``gate``, the only rule is that ``metric`` is at least the run's ``threshold``.
    ``aerotrain_airflow.gate`` makes rules. ``no_worse`` compares with ``baseline``: the
    version that this pipeline serves, or the URL of one. While there is none, ``first_run``
    decides: ``accept`` or ``refuse``. ``group`` is a column of which equal values belong together,
    such as a user's id. A refused model fails the task; with ``on_fail="skip"`` the task and later
    ones are skipped, and the run succeeds. With ``model_format``, such as ``litert``, ``model``
    is what ``export`` returned, and the version is judged in this format. ``environment`` is as for
    ``train``; ``pod`` is the template of the step's only pod. ``other`` are arguments of Airflow's
    operators.

    Returns:
        The metrics by name.
    """
    if model_format is not None:
        _check_exported("evaluate with model_format", model, model_format)
    rules = [at_least(metric, RunParam("threshold"))] if gate is None else list(gate)
    return JobOperator(
        task_id=task_id,
        skip_key="skipped",
        **WHERE,
        **_REUSE,
        **other,
        job={
            "module": "aerotrain.evaluate",
            "replicas": [_chief(environment, pod)],
            "arguments": {
                "model": model,
                "data": data,
                "model_format": model_format,
                "gate": rules,
                "baseline": baseline,
                "first_run": first_run,
                "on_fail": on_fail,
                "group": group,
            },
        },
    ).output


def approve(metrics: XComArg, *, task_id: str = "approve", **other: Any) -> ModelApprovalOperator:
    """Wait until a person approves the model whose ``evaluate`` returned ``metrics``::

        approve(evaluate(model, data)) >> export(model, data)

    The question is among the required actions of Airflow's UI, with the metrics and a link to the
    card. A rejected model skips later tasks. ``other`` are arguments of ``ApprovalOperator``, such
    as ``fail_on_reject``, ``assigned_users``, ``response_timeout`` and ``notifiers``.
    """
    evaluation, _ = next(iter(metrics.iter_references()))
    return ModelApprovalOperator(
        task_id=task_id, metrics=metrics, evaluation=evaluation.task_id, **other
    )


def export(
    model: XComArg | str,
    data: XComArg | str,
    *,
    keras_file: bool = True,
    records: int | None = 64,
    formats: Sequence[str] = (),
    quantize: str | None = None,
    format_tolerance: float | None = None,
    task_id: str = "export",
    environment: Mapping[str, str] | None = None,
    pod: PodTemplate | None = None,
    **other: Any,
) -> XComArg:
    """Publish the model as the next version for TensorFlow Serving, after checking it.

    In another process, the exported model must give the predictions of the trained one for the
    first ``records`` records of the test split. If it is None, it must for all of them, which takes
    disk space for about three times the split. With ``keras_file``, the version also has
    ``model.keras``: the model without its transform.

    ``formats``, of ``litert`` and ``onnx``, add the model and its transform in these formats, each
    verified on the same records in its own runtime; ``quantize="int8"`` quantizes them.
    ``format_tolerance`` is the accepted difference of predictions: of each value 0.0001, absolute
    or relative; of a quantized model in the mean 0.05 of the range of an output. They need the
    extras of their names. ``environment`` is as for ``train``; ``pod`` is the template of the
    step's only pod. ``other`` are arguments of Airflow's operators, such as ``outlets``.

    Returns:
        The URL of the version.
    """
    return JobOperator(
        task_id=task_id,
        **WHERE,
        **_REUSE,
        **other,
        job={
            "module": "aerotrain.export",
            "replicas": [_chief(environment, pod)],
            "arguments": {
                "model": model,
                "data": data,
                "keras_file": keras_file,
                "records": records,
                "formats": list(formats),
                "quantize": quantize,
                "format_tolerance": format_tolerance,
            },
        },
    ).output


def serve_check(
    version: XComArg | str,
    *,
    image: str | None = None,
    command: Sequence[str] = (),
    rate: float = 50.0,
    seconds: float = 5.0,
    p99: float | None = None,
    task_id: str = "serve_check",
    environment: Mapping[str, str] | None = None,
    pod: PodTemplate | None = None,
    **other: Any,
) -> XComArg:
    """Start a server with the version that ``export`` returned, and check it before ``promote``::

        version = export(model, data)
        serve_check(version, image="tensorflow/serving:2.19.1", p99=50) >> promote(version)

    Real records are sent by REST and gRPC; the answers must be the predictions of the trained
    model. Then ``rate`` requests a second are sent for ``seconds`` seconds by each, and their 99th
    percentile may be ``p99`` milliseconds.

    On Kubernetes, the server is a sidecar container of ``image`` with TensorFlow Serving's command
    line, which needs Kubernetes 1.29 or later. Elsewhere, or without an image,
    ``command`` starts it: the words of ``aerotrain.contract.serving_check.ServeCheckArguments``.
    Without both, it is the server for development. ``environment`` is as for ``train``; ``pod`` is
    the template of the step's only pod. ``other`` are arguments of Airflow's operators.

    Returns:
        The latencies by name.
    """
    _check_exported("serve_check", version)
    beside = server_pod(image) if image else {}
    return JobOperator(
        task_id=task_id,
        **WHERE,
        **other,
        job={
            "module": "aerotrain.serve_check",
            "replicas": [_chief(environment, merge(beside, pod or {}))],
            "arguments": {
                "version": version,
                "command": list(command),
                "rate": rate,
                "seconds": seconds,
                "p99": p99,
            },
        },
    ).output


def promote(
    version: XComArg | str,
    *,
    metrics: XComArg | None = None,
    task_id: str = "promote",
    **other: Any,
) -> XComArg:
    """Serve the version that ``export`` returned, which servers and ``predict`` follow.

    ``metrics``, the output of ``evaluate``, are kept in the history. Without this step, the newest
    version is served until one is promoted. ``other`` are arguments of ``PromoteOperator``.

    Returns:
        The URL of the version that is served.
    """
    _check_exported("promote", version)
    return PromoteOperator(task_id=task_id, version=version, metrics=metrics, **other).output


def rollback(
    *, pipeline: str | None = None, reason: str = "", task_id: str = "rollback", **other: Any
) -> XComArg:
    """Serve the version that was served before the present one, as after an alarm.

    ``pipeline`` is the id of the DAG that exported it, by default this one. ``reason`` is kept in
    the history, and ``other`` are arguments of Airflow's operators.

    Returns:
        The URL of the version that is served.
    """
    return RollbackOperator(task_id=task_id, pipeline=pipeline, reason=reason, **other).output


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
            replicas=[_chief(environment, pod)],
        )
    return predictions


def _check_exported(step: str, version: XComArg | str, model_format: str | None = None) -> None:
    """Check that ``version`` is not the output of a step other than ``export``.

    Raises:
        SpecError: it is, or the export does not have the format.
    """
    task = getattr(version, "operator", None)
    if not isinstance(task, JobOperator):
        return
    if task.job["module"] != "aerotrain.export":
        raise SpecError(f"{step} takes what export returns, and got that of {task.task_id!r}")
    formats = [Format.SAVEDMODEL.value, *task.job["arguments"]["formats"]]
    if model_format is not None and model_format not in formats:
        raise SpecError(
            f"{step} is to judge {model_format!r}, and {task.task_id!r} exports "
            f"{', '.join(formats)}"
        )


def _chief(environment: Mapping[str, str] | None, pod: PodTemplate | None) -> dict[str, Any]:
    """The only replica of a step other than training."""
    return {
        "role": "chief",
        "resources": RunResources("resources", "chief"),
        "environment": dict(environment or {}),
        "pod": dict(pod or {}),
    }
