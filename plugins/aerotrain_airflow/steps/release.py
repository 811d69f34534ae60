"""The steps that decide about a trained model: judge it, export it, and serve it or not.

``at_least``, ``at_most`` and ``no_worse`` make the rules of a gate, whose other arguments
``aerotrain.contract.gate.Rule`` describes::

    evaluate(model, data, gate=[
        at_least("accuracy", 0.95),
        no_worse("auc", by=0.002, slices=["country", bucket("age", 4)]),
    ], first_run="accept")
"""

from collections.abc import Mapping, Sequence
from typing import Any

from airflow.sdk import XComArg

from aerotrain.contract.errors import SpecError
from aerotrain.contract.gate import SERVING, Choice, RuleKind
from aerotrain.contract.steps import Format
from aerotrain_airflow.kubernetes.pod import server_pod
from aerotrain_airflow.kubernetes.template import merge
from aerotrain_airflow.operators.job import JobOperator
from aerotrain_airflow.operators.release import (
    ModelApprovalOperator,
    PromoteOperator,
    RollbackOperator,
)
from aerotrain_airflow.params import REUSE, WHERE, RunParam
from aerotrain_airflow.steps.training import PodTemplate, chief


def at_least(metric: str, bound: Any, **others: Any) -> dict[str, Any]:
    """Refuse a model whose metric is below ``bound``, which may be a param of the run."""
    return {"kind": RuleKind.AT_LEAST.value, "metric": metric, "bound": bound, **others}


def at_most(metric: str, bound: Any, **others: Any) -> dict[str, Any]:
    """Refuse a model whose metric, such as an error, is above ``bound``."""
    return {"kind": RuleKind.AT_MOST.value, "metric": metric, "bound": bound, **others}


def no_worse(metric: str, *, by: Any = 0.0, **others: Any) -> dict[str, Any]:
    """Refuse a model that is worse than the baseline by more than ``by``.

    Both are measured on the same records. The model is refused if a loss of ``by`` or less would
    show a difference as large as the measured one with a probability below ``level`` only.
    ``aerotrain.evaluation.intervals`` says how that is estimated.
    """
    return {"kind": RuleKind.NO_WORSE.value, "metric": metric, "by": by, **others}


def bucket(column: str, buckets: int | Sequence[float]) -> dict[str, Any]:
    """Slices of a number: that many quantiles of it, or the ranges between rising boundaries."""
    return {"column": column, "buckets": buckets if isinstance(buckets, int) else list(buckets)}


def evaluate(
    model: XComArg | str,
    data: XComArg | str,
    *,
    metric: str = "accuracy",
    gate: Sequence[Mapping[str, Any]] | None = None,
    baseline: str = SERVING,
    first_run: str | None = None,
    leakage: str = Choice.ACCEPT.value,
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
    ``no_worse`` compares with ``baseline``: the
    version that this pipeline serves, or the URL of one. While there is none, ``first_run``
    decides: ``accept`` or ``refuse``. ``leakage`` decides in the same way of a model with a column
    that alone predicts the label, of which there is a warning otherwise. ``group`` is a column of
    which equal values belong together, such as a user's id. A refused model fails the task; with
    ``on_fail="skip"`` the task and later ones are skipped, and the run succeeds. With
    ``model_format``, such as ``litert``, ``model`` is what ``export`` returned, and the version is
    judged in this format. ``environment`` is as for ``train``; ``pod`` is the template of the
    step's only pod. ``other`` are arguments of Airflow's operators.

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
        **REUSE,
        **other,
        job={
            "module": "aerotrain.evaluation.evaluate",
            "replicas": [chief(environment, pod)],
            "arguments": {
                "model": model,
                "data": data,
                "model_format": model_format,
                "gate": rules,
                "baseline": baseline,
                "first_run": first_run,
                "leakage": leakage,
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
    first ``records`` records of the test split, or for all of them if it is None. With
    ``keras_file``, the version also has ``model.keras``: the model without its transform.

    ``formats``, of ``litert`` and ``onnx``, add the model and its transform in these formats, each
    verified on the first of these records, up to 256 MiB, in its own runtime; ``quantize="int8"``
    quantizes them. ``format_tolerance`` is the accepted difference of predictions: of each value
    0.0001, absolute or relative; of a quantized model in the mean 0.05 of the range of an output.
    They need the extras of their names. ``environment`` is as for ``train``; ``pod`` is the
    template of the step's only pod. ``other`` are arguments of Airflow's operators, such as
    ``outlets``.

    Returns:
        The URL of the version.
    """
    return JobOperator(
        task_id=task_id,
        **WHERE,
        **REUSE,
        **other,
        job={
            "module": "aerotrain.serving.export",
            "replicas": [chief(environment, pod)],
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

    Real records are sent by REST; the answers must be the predictions of the trained model. Then
    ``rate`` requests a second are sent for ``seconds`` seconds, and their 99th percentile may be
    ``p99`` milliseconds.

    On Kubernetes, the server is a sidecar container of ``image`` with TensorFlow Serving's command
    line, which needs Kubernetes 1.29 or later. Elsewhere, or without an image,
    ``command`` starts it: the words of ``aerotrain.contract.steps.ServeCheckArguments``.
    Without both, it is the server for development. ``environment`` is as for ``train``; ``pod`` is
    the template of the step's only pod. ``other`` are arguments of Airflow's operators.

    Returns:
        The latencies by name.
    """
    _check_exported("serve_check", version)
    sidecar = server_pod(image) if image else {}
    return JobOperator(
        task_id=task_id,
        **WHERE,
        **other,
        job={
            "module": "aerotrain.serving.serve_check",
            "replicas": [chief(environment, merge(sidecar, pod or {}))],
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


def _check_exported(step: str, version: XComArg | str, model_format: str | None = None) -> None:
    """Check that ``version`` is not the output of a step other than ``export``.

    Raises:
        SpecError: it is, or the export does not have the format.
    """
    task = getattr(version, "operator", None)
    if not isinstance(task, JobOperator):
        return
    if task.job["module"] != "aerotrain.serving.export":
        raise SpecError(f"{step} takes what export returns, and got that of {task.task_id!r}")
    formats = [Format.SAVEDMODEL.value, *task.job["arguments"]["formats"]]
    if model_format is not None and model_format not in formats:
        raise SpecError(
            f"{step} is to judge {model_format!r}, and {task.task_id!r} exports "
            f"{', '.join(formats)}"
        )
