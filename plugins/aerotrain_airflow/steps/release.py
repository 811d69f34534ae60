"""The steps that decide about a trained model: judge it, export it, and serve it or not.

``at_least``, ``at_most``, ``no_worse`` and ``better_than_trivial`` make the rules of a gate, whose
other arguments ``aerotrain.contract.gate.Rule`` describes::

    evaluate(model, data, gate=[
        at_least("accuracy", 0.95),
        no_worse("auc", by=0.002, slices=["country", bucket("age", 4)]),
    ], first_run="accept")
"""

from collections.abc import Mapping, Sequence
from typing import Any

from airflow.providers.standard.operators.hitl import ApprovalOperator
from airflow.sdk import XComArg

from aerotrain.contract.errors import SpecError
from aerotrain.contract.gate import RuleKind
from aerotrain.contract.steps import Format
from aerotrain_airflow.kubernetes.pod import server_pod
from aerotrain_airflow.kubernetes.template import merge
from aerotrain_airflow.operators.job import JobOperator
from aerotrain_airflow.operators.links import base_url
from aerotrain_airflow.operators.release import PromoteOperator, RollbackOperator
from aerotrain_airflow.params import REUSE, RunParam
from aerotrain_airflow.steps.training import PodTemplate, one_job


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


def better_than_trivial(metric: str, **others: Any) -> dict[str, Any]:
    """Refuse a model that is not significantly better than always the likeliest class, or the mean.

    ``level`` is the probability with which a model without any skill passes.
    """
    return {"kind": RuleKind.BETTER_THAN_TRIVIAL.value, "metric": metric, **others}


def bucket(column: str, buckets: int | Sequence[float]) -> dict[str, Any]:
    """Slices of a number: that many quantiles of it, or the ranges between rising boundaries."""
    return {"column": column, "buckets": buckets if isinstance(buckets, int) else list(buckets)}


def evaluate(
    model: XComArg | str,
    data: XComArg | str,
    *,
    metric: str = "accuracy",
    gate: Sequence[Mapping[str, Any]] | None = None,
    model_format: str | None = None,
    task_id: str = "evaluate",
    **other: Any,
) -> XComArg:
    """Evaluate the model on every record of the test split, and refuse it by the rules of ``gate``.

    Without ``gate``, the only rule is that ``metric`` is at least ``threshold``, an argument or the
    run's param. A refused model fails the task; with ``on_fail="skip"`` the task and later ones are
    skipped, and the run succeeds. With ``model_format``, such as ``litert``, ``model`` is what
    ``export`` returned, and the version is judged in this format.

    ``other`` are arguments of ``aerotrain.contract.steps.EvaluateArguments``, such as ``baseline``,
    ``first_run``, ``group`` and ``leakage``; ``environment``, as for ``train``; ``pod``, the
    template of the step's only pod; and arguments of Airflow's operators.

    Returns:
        The metrics by name.
    """
    if model_format is not None:
        _check_exported("evaluate with model_format", model, model_format)
    if gate is None:
        gate = [at_least(metric, other.pop("threshold", RunParam("threshold")))]
    arguments = {"model": model, "data": data, "model_format": model_format, "gate": list(gate)}
    module = "aerotrain.evaluation.evaluate"
    return one_job(task_id, module, arguments, other, skip_key="skipped", **REUSE)


#: What a person is asked, as a template of Markdown.
_QUESTION = """\
{{%- set run = run_id | urlencode | replace("/", "%2F") %}}
[The task {task}]({ui}/dags/{{{{ dag.dag_id }}}}/runs/{{{{ run }}}}/tasks/{task}) has the card: the
verdicts, slices and worst records.

| metric | value |
|---|---|
{{%- for name, value in ti.xcom_pull(task_ids="{task}").items() %}}
| {{{{ name }}}} | {{{{ "%.6g" | format(value) }}}} |
{{%- endfor %}}
"""


def approve(metrics: XComArg, *, task_id: str = "approve", **other: Any) -> ApprovalOperator:
    """Wait until a person approves the model whose ``evaluate`` returned ``metrics``::

        approve(evaluate(model, data)) >> export(model, data)

    The question is among the required actions of Airflow's UI, with the metrics and a link to the
    task that has the card. A rejected model skips later tasks. ``other`` are arguments of
    ``ApprovalOperator``, such as ``fail_on_reject``, ``assigned_users``, ``response_timeout`` and
    ``notifiers``.
    """
    evaluation, _ = next(iter(metrics.iter_references()))
    question = {
        "subject": "Export the model of {{ dag.dag_id }}, run {{ run_id }}?",
        "body": _QUESTION.format(task=evaluation.task_id, ui=base_url()),
    }
    approval = ApprovalOperator(task_id=task_id, **{**question, **other})
    metrics >> approval
    return approval


def export(
    model: XComArg | str, data: XComArg | str, *, task_id: str = "export", **other: Any
) -> XComArg:
    """Publish the model as the next version for TensorFlow Serving, after checking it.

    In another process, the exported model must give the predictions of the trained one for the
    first ``records`` records of the test split. With ``keras_file``, the version also has
    ``model.keras``: the model without its transform. ``formats``, of ``litert`` and ``onnx``, add
    the model and its transform in these formats, which need the extras of their names.

    ``other`` are these and other arguments of ``aerotrain.contract.steps.ExportArguments``, and
    ``environment``, ``pod`` and arguments of Airflow's operators, as for ``evaluate``.

    Returns:
        The URL of the version.
    """
    arguments = {"model": model, "data": data}
    return one_job(task_id, "aerotrain.serving.export", arguments, other, **REUSE)


def serve_check(
    version: XComArg | str,
    *,
    image: str | None = None,
    pod: PodTemplate | None = None,
    task_id: str = "serve_check",
    **other: Any,
) -> XComArg:
    """Start a server with the version that ``export`` returned, and check it before ``promote``::

        version = export(model, data)
        serve_check(version, image="tensorflow/serving:2.19.1", p99=50) >> promote(version)

    Real records are sent by REST; the answers must be the predictions of the trained model. Then
    ``rate`` requests a second are sent for ``seconds`` seconds, and their 99th percentile may be
    ``p99`` milliseconds.

    On Kubernetes, the server is a sidecar container of ``image`` with TensorFlow Serving's command
    line, which needs Kubernetes 1.29 or later. Elsewhere, or without an image, ``command`` starts
    it. Without both, it is the server for development. ``other`` are arguments of
    ``aerotrain.contract.steps.ServeCheckArguments``, such as these, and ``environment`` and
    arguments of Airflow's operators, as for ``evaluate``.

    Returns:
        The latencies by name.
    """
    _check_exported("serve_check", version)
    other["pod"] = merge(server_pod(image) if image else {}, pod or {})
    return one_job(task_id, "aerotrain.serving.serve_check", {"version": version}, other)


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
    formats = [Format.SAVEDMODEL.value, *task.job["arguments"].get("formats", ())]
    if model_format is not None and model_format not in formats:
        raise SpecError(
            f"{step} is to judge {model_format!r}, and {task.task_id!r} exports "
            f"{', '.join(formats)}"
        )
