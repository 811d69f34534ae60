"""The step that trains a model."""

from collections.abc import Mapping
from typing import Any

from airflow.sdk import XComArg

from aerotrain_airflow.operator import JobOperator
from aerotrain_airflow.params import REUSE, SET_BY_DAG, TRAINING_STEP, WHERE, RunParam
from aerotrain_airflow.steps.replicas import PodTemplate, replicas_of_training


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
        **REUSE,
        **other,
        job={
            "module": "aerotrain.train",
            "strategy": RunParam("strategy"),
            "deadlines": {"progress_timeout": RunParam("progress_timeout")},
            "restarts": RunParam("restarts"),
            "min_workers": RunParam("min_workers"),
            "replicas": replicas_of_training(environment or {}, pods or {}),
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
