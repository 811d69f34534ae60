"""The step that trains a model."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from airflow.sdk import XComArg

from aerotrain_airflow.operators.job import JobOperator
from aerotrain_airflow.params import REUSE, SET_BY_DAG, TRAINING_STEP, WHERE, RunParam
from aerotrain_airflow.steps.jobs import PodTemplate, replicas_of_training


class Train:
    """The step ``train``: see ``__call__``, and ``partial`` for several trainings of one run."""

    def __call__(
        self,
        module: str,
        data: XComArg | str,
        *,
        hparams: Mapping[str, Any] | XComArg | None = None,
        task_id: str = "train",
        environment: Mapping[str, str] | None = None,
        pods: Mapping[str, PodTemplate] | None = None,
        **other: Any,
    ) -> XComArg:
        """Train the model that ``module``'s ``build_model`` returns on the data set ``data``.

        ``hparams`` is passed to ``build_model`` together with the learning rate and the hparams of
        the form, which take precedence; it, or a value in it, may be a ``RunParam`` of the DAG, the
        output of a task, or an argument of a mapped task group. ``environment`` adds variables to
        the replicas, such as ``{"TF_USE_LEGACY_KERAS": "1"}`` for a tf_keras model, which
        ``evaluate`` and ``export`` then need too. ``pods`` are pod templates by role, for settings
        beyond resources, such as ``{"worker": {"spec": {"nodeSelector": {"pool": "gpu"}}}}``.
        ``other`` are options of the training that the form does not have, such as ``class_weight``
        and ``start_from``, and any other arguments of the operator, such as ``pool``.

        ``start_from`` names a model from which variables of equal path and shape, and rows of
        embeddings by word, get their first values: ``"serving"``, the version that this pipeline
        serves; the URL of a trained model or of an exported version; or the id of a run of this
        DAG.

        Returns:
            The URL of the trained model.
        """
        fields = _fields(module, data, hparams, environment, pods, **other)
        return JobOperator(task_id=task_id, **fields).output

    def partial(
        self, module: str, data: XComArg | str, *, task_id: str = "train", **other: Any
    ) -> "Mapped":
        """The same step with the same arguments, to be mapped by ``expand`` over several hparams.

        For example, ``train.partial("flats", data).expand(hparams=[{"units": 8}, {"units": 16}])``.
        """
        return Mapped({"task_id": task_id, **_fields(module, data, **other)})


train = Train()


@dataclass(frozen=True)
class Mapped:
    """A training whose operator has ``fields``, before it is mapped."""

    fields: Mapping[str, Any]

    def expand(self, *, hparams: Sequence[Mapping[str, Any]] | XComArg) -> XComArg:
        """Train once with each of ``hparams``, which take precedence over all others.

        Returns:
            The URLs of the trained models.
        """
        several: Any = (
            hparams.map(_of_one)
            if isinstance(hparams, XComArg)
            else [_of_one(each) for each in hparams]
        )
        return JobOperator.partial(**self.fields).expand(arguments=several).output


def _of_one(hparams: Mapping[str, Any]) -> dict[str, Any]:
    return {"hparams": hparams}


def _fields(
    module: str,
    data: XComArg | str,
    hparams: Any = None,
    environment: Mapping[str, str] | None = None,
    pods: Mapping[str, PodTemplate] | None = None,
    **other: Any,
) -> dict[str, Any]:
    """The arguments of the operator but its task id."""
    options = {name: other.pop(name) for name in SET_BY_DAG if name in other}
    return {
        **WHERE,
        **REUSE,
        **other,
        "job": {
            "module": "aerotrain.training.train",
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
                "hparams": [hparams or {}, RunParam("hparams")],
            },
        },
    }
