"""The steps of a pipeline, as a DAG file writes them.

Each returns the output of its task, to be handed to the next step::

    shards = prepare("digits")
    model = train("digits", shards)
    evaluate(model, shards) >> export(model, shards)

What a step takes from the run (strategy, epochs, threshold, …) it takes from the DAG's params,
which ``aerotrain_airflow.params.training_params`` makes.
"""

from collections.abc import Mapping
from typing import Any

from airflow.sdk import TaskGroup, XComArg

from aerotrain_airflow.operator import JobOperator
from aerotrain_airflow.params import TRAINING_STEP
from aerotrain_airflow.preflight import PreflightOperator
from aerotrain_airflow.run_params import RunParam, RunResources, RunSwitch

#: What every step takes from the run besides its own: where it runs, and whether it does.
_WHERE: dict[str, Any] = {"launcher": RunParam("launcher"), "dry_run": RunParam("dry_run")}

PodTemplate = Mapping[str, Any]


def prepare(
    source: str | Mapping[str, Any],
    *,
    splits: Mapping[str, float] | None = None,
    pool: str | None = None,
    **rules: Any,
) -> XComArg:
    """Turn a source into a sealed data set, once for each state of its input.

    ``source`` is a module of the pipeline's ``models`` folder with ``list_parts`` and
    ``read_part``, or describes files by their kind, as ``{"kind": "parquet", "url":
    "s3://bucket/table/dt={{ ds }}/"}``; ``aerotrain.sources`` has the kinds. ``rules`` are
    the other arguments of ``aerotrain.contract.preparing.PlanArguments``, such as ``key`` or
    ``split_by``. ``pool`` bounds how many parts are written at once. The first task refuses
    what cannot run, in this step and all later ones.

    Returns:
        The URL of the data set.
    """
    described = {"kind": "python", "module": source} if isinstance(source, str) else dict(source)
    plan_arguments: dict[str, Any] = {
        "source": described,
        "shards": RunParam("shards"),
        "allow_drift": RunParam("allow_drift"),
        **rules,
    }
    if splits is not None:
        plan_arguments["splits"] = dict(splits)
    bounded = {} if pool is None else {"pool": pool}
    with TaskGroup("prepare"):
        check = PreflightOperator(task_id="check", **_WHERE)
        plan = JobOperator(
            task_id="plan",
            job={"module": "aerotrain.prepare.plan", "arguments": plan_arguments},
            return_key="partitions",
            **_WHERE,
        )
        partitions = JobOperator.partial(
            task_id="partition",
            job={"module": "aerotrain.prepare.partition"},
            **_WHERE,
            **bounded,
        ).expand(arguments=plan.output)
        finalize = JobOperator(
            task_id="finalize",
            job={
                "module": "aerotrain.prepare.finalize",
                "arguments": {"dataset": XComArg(plan, "dataset")},
            },
            # No partition is left to write where the data set is finalized already.
            trigger_rule="none_failed",
            **_WHERE,
        )
        check >> plan >> partitions >> finalize
    return finalize.output


def train(
    module: str,
    data: XComArg | str,
    *,
    hparams: Mapping[str, Any] | None = None,
    task_id: str = "train",
    environment: Mapping[str, str] | None = None,
    pods: Mapping[str, PodTemplate] | None = None,
    **operator: Any,
) -> XComArg:
    """Train the model that ``module``'s ``build_model`` returns on the data set ``data``.

    ``hparams`` goes to ``build_model`` beside the learning rate; a value may be a
    ``RunParam`` of the DAG's own. ``environment`` is what the replicas get besides, such as
    ``{"TF_USE_LEGACY_KERAS": "1"}`` for a tf_keras model, which ``evaluate`` and ``export``
    then need too. ``pods`` are templates by role, for what its pods need beyond resources, such
    as ``{"worker": {"spec": {"nodeSelector": {"pool": "gpu"}}}}``. ``operator`` is any other
    argument of the operator, such as ``pool``.

    Returns:
        The URL of the trained model.
    """
    return JobOperator(
        task_id=task_id,
        **_WHERE,
        **operator,
        job={
            "module": "aerotrain.train",
            "strategy": RunParam("strategy"),
            "deadlines": {"progress_timeout": RunParam("progress_timeout")},
            "restarts": RunParam("restarts"),
            "min_workers": RunParam("min_workers"),
            "replicas": [
                {
                    "role": role,
                    "count": count,
                    "resources": RunResources("resources", role),
                    "environment": dict(environment or {}),
                    "pod": dict((pods or {}).get(role, {})),
                }
                for role, count in (
                    ("chief", 1),
                    ("worker", RunParam("workers")),
                    ("ps", RunParam("ps")),
                    ("evaluator", RunSwitch("evaluator")),
                    ("input", RunParam("data_workers")),
                    ("dispatcher", RunSwitch("data_workers")),
                )
            ],
            "arguments": {
                "model": module,
                "data": data,
                **{name: RunParam(name) for name in TRAINING_STEP},
                "hparams": {"learning_rate": RunParam("learning_rate"), **(hparams or {})},
            },
        },
    ).output


def evaluate(
    model: XComArg | str,
    data: XComArg | str,
    *,
    metric: str = "accuracy",
    environment: Mapping[str, str] | None = None,
    pod: PodTemplate | None = None,
) -> XComArg:
    """Evaluate the model on every record of the test split, and fail below the threshold.

    ``environment`` is as for ``train``; ``pod`` is the template of its one pod.

    Returns:
        The metrics by name.
    """
    return JobOperator(
        task_id="evaluate",
        **_WHERE,
        job={
            "module": "aerotrain.evaluate",
            "replicas": [_chief(environment, pod)],
            "arguments": {
                "model": model,
                "data": data,
                "thresholds": {metric: RunParam("threshold")},
            },
        },
    ).output


def export(
    model: XComArg | str,
    data: XComArg | str,
    *,
    environment: Mapping[str, str] | None = None,
    pod: PodTemplate | None = None,
) -> XComArg:
    """Publish the model as the next version for TensorFlow Serving, once it is proven.

    ``environment`` is as for ``train``; ``pod`` is the template of its one pod.

    Returns:
        The URL of the version.
    """
    return JobOperator(
        task_id="export",
        **_WHERE,
        job={
            "module": "aerotrain.export",
            "replicas": [_chief(environment, pod)],
            "arguments": {"model": model, "data": data},
        },
    ).output


def _chief(environment: Mapping[str, str] | None, pod: PodTemplate | None) -> dict[str, Any]:
    """The one replica of a step that is no training."""
    return {
        "role": "chief",
        "resources": RunResources("resources", "chief"),
        "environment": dict(environment or {}),
        "pod": dict(pod or {}),
    }
