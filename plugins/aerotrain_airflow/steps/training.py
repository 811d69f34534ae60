"""The steps that read a source by partitions, to prepare or to predict, and that train a model."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, fields
from inspect import signature
from pathlib import Path
from typing import Any

from airflow.sdk import BaseOperator, Param, TaskGroup, XComArg

from aerotrain.contract.errors import SpecError, nearest
from aerotrain.contract.replicas import ReplicaSpec, Role
from aerotrain.contract.steps import ARGUMENTS
from aerotrain.contract.strategy import COUNTED_BY, SWITCHED_BY
from aerotrain.user_code import hparams_of
from aerotrain_airflow.operators.description import models_folder
from aerotrain_airflow.operators.job import JobOperator
from aerotrain_airflow.operators.preflight import PreflightOperator
from aerotrain_airflow.params import (
    FORM,
    REUSE,
    TRAINING,
    TRAINING_STEP,
    WHERE,
    RunParam,
    RunResources,
    RunSwitch,
)

PodTemplate = Mapping[str, Any]


def replica(
    role: str,
    environment: Mapping[str, str] | None,
    pod: PodTemplate | None,
    count: Any = 1,
    resources: Mapping[str, Any] | None = None,
) -> dict[str, Any]:
    """The replicas of one role; their resources are those of the run's params if None is given."""
    own = RunResources("resources", role) if resources is None else resources.get(role, {})
    return {
        "role": role,
        "count": count,
        "resources": own,
        "environment": dict(environment or {}),
        "pod": dict(pod or {}),
    }


#: The names of the arguments of Airflow's operators, and of those of ``JobOperator`` that say how.
_OPERATOR = frozenset(
    {
        *signature(BaseOperator.__init__).parameters,
        *("launcher", "reuse", "dry_run", "deferrable"),
    }
)


def by_partitions(
    package: str,
    arguments: Mapping[str, Any],
    *,
    pool: str | None,
    operator: Mapping[str, Any],
    replicas: Sequence[Mapping[str, Any]] = (),
) -> tuple[JobOperator, XComArg]:
    """The tasks ``plan``, ``partition`` and ``finalize`` of a package, in this order.

    ``operator`` are arguments of all three operators, of which the last one alone updates assets.
    Returns the first task, and the value of the last one.
    """
    described = {"replicas": list(replicas)} if replicas else {}
    common = {**WHERE, **{name: each for name, each in operator.items() if name != "outlets"}}
    plan = JobOperator(
        task_id="plan",
        job={"module": f"{package}.plan", **described, "arguments": dict(arguments)},
        return_key="partitions",
        **common,
    )
    partitions = JobOperator.partial(
        task_id="partition",
        job={"module": f"{package}.partition", **described},
        doc_md="Writes one partition. **Skipped** if this very input was processed before: then "
        "there is nothing to write, and `finalize` returns what was written then.",
        **common,
        **({} if pool is None else {"pool": pool}),
    ).expand(arguments=plan.output)
    finalize = JobOperator(
        task_id="finalize",
        job={"module": f"{package}.finalize", "arguments": {"output": XComArg(plan, "output")}},
        # No partition is left to write where the output is complete already.
        trigger_rule="none_failed",
        outlets=operator.get("outlets"),
        **common,
    )
    plan >> partitions >> finalize
    return plan, finalize.output


def _check_names(step: str, given: Iterable[str], known: Sequence[str]) -> None:
    """Check that each name is one of ``known``, or of Airflow's operators. Raises ``SpecError``."""
    for name in given:
        if name not in _OPERATOR and name not in known:
            raise SpecError(
                f"{step} has no argument {name!r}{nearest(name, [*known, *_OPERATOR])}; it has "
                f"{', '.join(known)}, and those of Airflow's operators"
            )


def separated(module: str, other: Mapping[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
    """The arguments of a module, and those of Airflow's operators.

    Raises:
        SpecError: one is neither; the message has the nearest name.
    """
    known = [each.name for each in fields(ARGUMENTS[module])]  # type: ignore[arg-type]
    _check_names(ARGUMENTS[module].TITLE, other, known)
    return (
        {name: each for name, each in other.items() if name not in _OPERATOR},
        {name: each for name, each in other.items() if name in _OPERATOR},
    )


def one_job(
    task_id: str,
    module: str,
    arguments: Mapping[str, Any],
    other: Mapping[str, Any],
    **operator: Any,
) -> XComArg:
    """The output of a task that runs one replica, with ``other`` arguments of a step."""
    other = dict(other)
    chief = replica("chief", other.pop("environment", None), other.pop("pod", None))
    own, more = separated(module, other)
    return JobOperator(
        task_id=task_id,
        **{**WHERE, **operator, **more},
        job={"module": module, "replicas": [chief], "arguments": {**arguments, **own}},
    ).output


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
    arguments of ``aerotrain.contract.preparing.PlanArguments``, such as ``key``, ``split_by`` or
    ``shards``; ``check_model``, in place of the param; and those of Airflow's operators, such as
    ``queue``. Of these, ``pool`` limits how many partitions are written at once, and ``outlets``
    are assets that the data set updates. The tasks are in a group named ``group_id``: another one
    for a second data set, which needs a ``name`` too. The first task checks this step and all
    later ones.

    Returns:
        The URL of the data set.
    """
    check_model = other.pop("check_model", RunParam("check_model"))
    rules, operator = separated("aerotrain.data.prepare.plan", other)
    plan_arguments: dict[str, Any] = {
        "source": _described(source),
        "shards": RunParam("shards"),
        "allow_drift": RunParam("allow_drift"),
        **rules,
    }
    if splits is not None:
        plan_arguments["splits"] = dict(splits)
    with TaskGroup(group_id):
        check = PreflightOperator(task_id="check", check_model=check_model, **WHERE)
        plan, dataset = by_partitions(
            "aerotrain.data.prepare",
            plan_arguments,
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
    ``other`` are arguments of ``aerotrain.contract.preparing.PredictArguments``, such as
    ``batch_size``, and of Airflow's operators as for ``prepare``; ``environment`` is as for
    ``train``, and ``pod`` is the template of the pod of each task.

    Returns:
        The URL of a folder of Parquet files with one row for each record.
    """
    rules, operator = separated("aerotrain.prediction.plan", other)
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
            pool=pool,
            operator=operator,
            replicas=[replica("chief", environment, pod)],
        )
    return predictions


def _described(source: str | Mapping[str, Any]) -> dict[str, Any]:
    """The description of a source, which may be a module."""
    return {"kind": "python", "module": source} if isinstance(source, str) else dict(source)


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
        spot: Sequence[str] = (),
        **other: Any,
    ) -> XComArg:
        """Train the model that ``module``'s ``build_model`` returns on the data set ``data``.

        ``hparams`` is passed to ``build_model`` together with the learning rate and the hparams of
        the form, which take precedence; it, or a value in it, may be a ``RunParam`` of the DAG, the
        output of a task, or an argument of a mapped task group. ``environment`` adds variables to
        the replicas, such as ``{"TF_USE_LEGACY_KERAS": "1"}`` for a tf_keras model, which
        ``evaluate`` and ``export`` then need too. ``pods`` are pod templates by role, for settings
        beyond resources, such as ``{"worker": {"spec": {"nodeSelector": {"pool": "gpu"}}}}``.
        ``spot`` are the roles whose pods prefer spot nodes, of ``worker`` and ``input``, such as
        ``["worker"]``; then those of all other roles avoid them, and at the last try of the task
        those of all.
        ``other`` are options of the training, in place of the params of the run, such as
        ``epochs=5`` or ``strategy="one_device"``; those that the form does not have, such as
        ``class_weight`` and ``start_from``; and arguments of Airflow's operators, such as ``pool``.

        ``start_from`` names a model from which variables of equal path and shape get their first
        values: ``"serving"``, the version that this pipeline serves; the URL of a trained model or
        of an exported version; or the id of a run of this DAG.

        Returns:
            The URL of the trained model.
        """
        fields = _fields(module, data, hparams, environment, pods, spot, **other)
        return _shown_in_form(JobOperator(task_id=task_id, **fields), module)

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
            hparams.map(lambda each: {"hparams": each})
            if isinstance(hparams, XComArg)
            else [{"hparams": each} for each in hparams]
        )
        task = JobOperator.partial(**self.fields).expand(arguments=several)
        return _shown_in_form(task, self.fields["job"]["arguments"]["model"])


def _shown_in_form(task: Any, module: str) -> XComArg:
    """The output of a training, after its DAG's form says which hparams ``module`` reads."""
    dag, folder = task.get_dag(), models_folder(task)
    if folder and "hparams" in dag.params and (reads := hparams_of(Path(folder), module)):
        keys = (f"**{name}**" + f" ({default})" * bool(default) for name, default in reads.items())
        said = f" **{module}** reads {', '.join(keys)}."
        param = dag.params.get_param("hparams")
        text = param.schema.get("description_md", "").replace(said, "") + said
        schema = {**param.schema, "description_md": text}
        dag.params["hparams"] = Param(param.value, schema=schema, source="dag")
    return task.output


def _fields(
    module: str,
    data: XComArg | str,
    hparams: Any = None,
    environment: Mapping[str, str] | None = None,
    pods: Mapping[str, PodTemplate] | None = None,
    spot: Sequence[str] = (),
    **other: Any,
) -> dict[str, Any]:
    """The arguments of the operator but its task id.

    Raises:
        SpecError: one of ``other`` is neither an option nor of Airflow's operators, or one of
            ``spot`` is no role that may be on spot nodes.
    """
    _check_names("train", other, TRAINING)
    for role in spot:
        ReplicaSpec.from_dict({"role": role, "spot": True})

    def option(name: str) -> Any:
        """The value in the DAG file, else that of the run."""
        return other.get(name, RunParam(name))

    counts: dict[Role, Any] = {
        Role.CHIEF: 1,
        **{role: option(name) for role, name in COUNTED_BY.items()},
        **{
            role: int(bool(other[name])) if name in other else RunSwitch(name)
            for role, name in SWITCHED_BY.items()
        },
    }
    resources = other.get("resources")
    return {
        **WHERE,
        **REUSE,
        **{name: each for name, each in other.items() if name not in TRAINING},
        "job": {
            "module": "aerotrain.training.train",
            "strategy": option("strategy"),
            "deadlines": {"progress_timeout": option("progress_timeout")},
            "restarts": option("restarts"),
            "replicas": [
                {
                    **replica(
                        role.value, environment, (pods or {}).get(role.value), count, resources
                    ),
                    "spot": role in spot if spot else None,
                }
                for role, count in counts.items()
            ],
            "arguments": {
                "model": module,
                "data": data,
                **{n: option(n) for n in TRAINING_STEP if n in FORM or n in other},
                "hparams": [hparams or {}, RunParam("hparams")],
            },
        },
    }
