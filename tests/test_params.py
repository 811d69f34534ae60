"""The params of a training pipeline, as an operator resolves them."""

from pathlib import Path

import pytest
from airflow.sdk import DAG, Param

from aerotrain.contract.job import Job
from aerotrain.contract.replicas import Role
from aerotrain.contract.training import TrainArguments
from aerotrain_airflow.params import RunParam, RunSwitch, training_params
from aerotrain_airflow.steps import train


@pytest.mark.parametrize(
    ("asked", "on", "counts"),
    [(None, True, (0, 1)), (0, False, (0, 0)), (2, False, (2, 0))],
)
def test_no_number_of_input_replicas_means_none_and_a_switch_means_one_replica(asked, on, counts):
    params = {"params": {"data_workers": asked, "evaluator": on}}
    replicas = [
        {"role": "chief"},
        {"role": "input", "count": RunParam("data_workers").resolve(params)},
        {"role": "evaluator", "count": RunSwitch("evaluator").resolve(params)},
    ]
    names = {"name": "train", "module": "m", "store": "s3://b", "run": "r", "task": "t"}
    job = Job.from_dict({**names, "replicas": replicas})
    assert tuple(map(job.count, (Role.INPUT, Role.EVALUATOR))) == counts


@pytest.mark.parametrize(
    ("name", "default"),
    [
        ("hparams", {"units": 8}),
        ("resources", {}),
        ("check_model", False),
        ("workers", None),
        ("epochs", 3),
        ("strategy", "mirrored"),
    ],
)
def test_null_over_rest_is_the_same_as_leaving_the_param_out(name, default):
    given = {"hparams": {"units": 8}, "check_model": False, "epochs": 3, "strategy": "mirrored"}
    with DAG("nulls", params=training_params(**given)) as dag:
        pass
    dag.params[name] = None  # as Airflow does with the conf of a run
    context = {"params": dag.params.validate(), "dag": dag}
    assert RunParam(name).resolve(context) == default


def test_a_task_has_no_copies_of_the_params_of_its_dag_which_cost_most_of_parsing_it():
    """But its own, and those that others read of tasks, as OpenLineage reads its switch."""
    params = {**training_params(), "_selective_enable_ol": Param(True)}
    with DAG("copies", params=params):
        step = train("m", "file:///data", params={"epochs": training_params()["epochs"], "mine": 1})
    assert set(step.operator.params) == {"epochs", "mine", "_selective_enable_ol"}


def test_hparams_of_the_form_come_before_those_of_the_dag():
    with DAG("forms", params=training_params(hparams={"units": 8}, learning_rate=0.1)) as dag:
        train("m", "file:///data", hparams={"units": 4, "drop": 0.1, "of": "{{ params.epochs }}"})
    task = dag.get_task("train")
    context = {"params": dag.params.dump()}
    rendered = task.render_template(task.job["arguments"], context)
    assert TrainArguments.from_dict(rendered).given_hparams == {
        "learning_rate": 0.1,
        "units": 8,
        "drop": 0.1,
        "of": "10",
    }


MODULE = """
def build_model(hparams):
    layer = Dense(hparams["units"], activation=hparams.get("activation", "relu"))
    return compiled(layer, hparams)

def compiled(layer, hparams):
    rate = hparams.pop("rate", RATE) if hparams.get("decay") else hparams.get("rate", 1e-3)

def callbacks(hparams):
    return [EarlyStopping()] if hparams.get("stop", False) and other.get("none", 1) else []
"""


def test_the_form_shows_the_hparams_that_the_modules_of_the_dag_read(tmp_path: Path) -> None:
    (tmp_path / "models").mkdir()
    for name, text in {"flats": MODULE, "wrong": "def build_model(hparams:", "none": ""}.items():
        (tmp_path / "models" / f"{name}.py").write_text(text)
    with DAG("shown", params=training_params(hparams={"units": 8})) as dag:
        dag.fileloc = str(tmp_path / "dag.py")
        for module in ("flats", "wrong", "none", "missing", "{{ params.module }}"):
            train(module, "file:///data", task_id=f"train_{len(dag.tasks)}")
        train.partial("flats", "file:///data").expand(hparams=[{"units": 4}])
    param = dag.params.get_param("hparams")
    help_ = training_params(hparams={"units": 8})["hparams"].schema["description_md"]
    read = "**activation** ('relu'), **decay**, **rate** (RATE), **stop** (False), **units**"
    assert param.schema["description_md"] == f"{help_} **flats** reads {read}."
    assert param.value == {"units": 8}
