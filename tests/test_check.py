"""The check of a model in the first task: what it finds before any data is prepared."""

import sys
from types import ModuleType

import keras
import pytest
import tensorflow as tf

from aerotrain.check import Trial, run
from aerotrain.contract.errors import ExitCode, FinalError
from aerotrain.contract.gate import Rule
from aerotrain.contract.replicas import ReplicaSpec, Resources, Role
from aerotrain.contract.steps import ExportArguments, check_of
from aerotrain.contract.training import TrainArguments
from aerotrain.replica import Replica
from aerotrain.standalone import CHIEF
from support.training_fixtures import MODELS, start_python

pytestmark = pytest.mark.process

CHIEF_ALONE = (ReplicaSpec(role=Role.CHIEF),)
WITH_PS = (
    ReplicaSpec(role=Role.CHIEF),
    ReplicaSpec(role=Role.WORKER, count=2),
    ReplicaSpec(role=Role.PS),
)
WITH_PEERS = (ReplicaSpec(role=Role.CHIEF), ReplicaSpec(role=Role.WORKER, count=2))
DIGITS = {"source": {"kind": "python", "module": "digits"}}


@pytest.fixture
def check(digits, tmp_path):
    """Check a training of a model, by default on the source of the digits."""

    def check(
        model="small",
        replicas=CHIEF_ALONE,
        strategy="one_device",
        prepare=DIGITS,
        gate=(),
        exports=(),
        **more,
    ):
        training = digits.job(
            "train",
            "checked",
            {"model": model, "data": "", **more},
            strategy=strategy,
            replicas=replicas,
        )
        job = check_of(training, prepare, name="check", task="check", gate=gate, exports=exports)
        run(Replica(job=job, name=CHIEF, attempt="1", scratch=tmp_path))

    return check


def module(**functions):
    """The name of a user's module with these functions."""
    made = ModuleType("made_up")
    vars(made).update(functions)
    sys.modules[made.__name__] = made
    return made.__name__


def compiled(*layers, loss="sparse_categorical_crossentropy", **more):
    model = keras.Sequential([keras.layers.Flatten(), *layers])
    model.compile("sgd", loss, **more)
    return model


def scaled(features):
    return tf.cast(features["image"], tf.float32) / 16, features["label"]


@pytest.mark.parametrize(
    ("given", "message"),
    [
        (
            {"model": "own_step", "strategy": "parameter_server", "replicas": WITH_PS},
            "OwnStep has a train_step of its own, .* override compute_loss",
        ),
        (
            {"strategy": "multi_worker_mirrored", "replicas": WITH_PEERS, "batch_size": 32},
            "32 cannot be shared by the 3 replicas of 'multi_worker_mirrored'; use 30 or 33",
        ),
        (
            {"strategy": "parameter_server", "replicas": WITH_PS, "jit_compile": True},
            "jit_compile cannot be under 'parameter_server'",
        ),
        ({"model": "uncompiled"}, "returned is not compiled; call model.compile"),
        ({"model": "nameless"}, "no function build_model.*did you mean 'build_modle'"),
        (
            {"validate": True, "prepare": {**DIGITS, "splits": {"train": 1.0}}},
            "no split 'validation'.*the training validates on it",
        ),
        (
            {"model": "calling", "hparams": {"callbacks": {"EarlyStopping": {"monitor": "los"}}}},
            "monitors 'los', which is not logged, did you mean 'loss'",
        ),
    ],
)
def test_what_a_training_would_refuse_is_refused_before_its_data_is_prepared(check, given, message):
    with pytest.raises(FinalError, match=message):
        check(**given)


@pytest.mark.parametrize(
    ("formats", "message"),
    [
        (["litert"], "'litert': LiteRT does not have the operation [A-Z].*StringLower"),
        (["onnx"], "'onnx': ONNX does not have the operation StringSplit"),
    ],
)
def test_a_format_without_an_operation_of_the_model_is_refused_before_its_training(
    check, formats, message
):
    prepare = {"source": {"kind": "python", "module": "text"}}
    exports = [ExportArguments(model="m", data="d", formats=formats)]
    with pytest.raises(FinalError, match=message):
        check(model="text", prepare=prepare, exports=exports)


def test_a_transform_that_looks_up_a_missing_column_is_told_which_there_are(check):
    def transform(features):
        return features["images"], features["label"]

    model = module(build_model=lambda _: compiled(keras.layers.Dense(10)), transform=transform)
    message = r"up 'images' \(line \d+ of test_check.py\).*mean 'image'\?; .* are image, label"
    with pytest.raises(FinalError, match=message):
        check(model)


@pytest.mark.parametrize(
    ("build", "message"),
    [
        (
            lambda: compiled(keras.layers.Reshape((3, 3)), keras.layers.Dense(10)),
            r"target_shape=\(3, 3\)",
        ),
        (
            lambda: compiled(keras.layers.Dense(10), loss="binary_crossentropy"),
            r"must have the same rank.*output.shape=\(None, 10\)",
        ),
        (
            lambda: compiled(keras.layers.Dense(10), loss="sparse_categorical_crosentropy"),
            "sparse_categorical_crosentropy",
        ),
    ],
    ids=["a shape", "a loss that does not fit the label", "a misspelt loss"],
)
def test_a_model_that_cannot_make_a_step_is_refused(check, build, message):
    with pytest.raises(FinalError, match=message):
        check(model=module(build_model=lambda _: build(), transform=scaled))


def test_a_label_that_is_no_class_of_the_model_is_refused(check, tmp_path):
    """Also if the data are sorted by their labels, so that a first batch has the first only."""
    rows = "".join(f"{number},{number // 90}\n" for number in range(190))
    (tmp_path / "sorted.csv").write_text(f"x,label\n{rows}")
    source = {"kind": "csv", "url": (tmp_path / "sorted.csv").as_uri()}
    model = module(
        build_model=lambda _: compiled(keras.layers.Dense(2, activation="softmax")),
        transform=lambda features: (features["x"][:, None], features["label"]),
    )
    with pytest.raises(FinalError, match=r"a label is 2, .* labels 0 to 1"):
        check(model, prepare={"source": source})


def test_a_model_for_batches_of_one_size_is_tried_with_batches_of_that_size(check, capsys):
    def build(hparams):
        model = keras.Sequential(
            [
                keras.Input(batch_shape=(hparams["batch_size"], 1, 8, 8)),
                keras.layers.Flatten(),
                keras.layers.Dense(10, activation="softmax"),
            ]
        )
        model.compile("sgd", "sparse_categorical_crossentropy")
        return model

    def transform(features):
        images, labels = scaled(features)
        return images[:, None], labels

    check(model=module(build_model=build, transform=transform), batch_size=48)
    assert "builds and makes a step under 'one_device'" in capsys.readouterr().out


def test_a_model_is_tried_on_an_existing_data_set(check, digits, capsys):
    check(
        prepare={},
        data=digits.data,
        strategy="parameter_server",
        replicas=WITH_PS,
        gate=[Rule(kind="at_least", metric=each, bound=0.5) for each in ("accuracy", "loss")],
    )
    assert "builds and makes a step under 'parameter_server'" in capsys.readouterr().out


def test_a_source_that_cannot_be_read_is_left_to_the_task_that_prepares_it(check, capsys):
    check(prepare={"source": {"kind": "csv", "url": "file:///no/such/folder"}})
    assert "the model is not checked here, for its source cannot be read" in capsys.readouterr().out


def test_a_source_without_a_scheme_is_refused(check):
    with pytest.raises(FinalError, match=r"./a/table\.csv. names no store"):
        check(prepare={"source": {"kind": "csv", "url": "/a/table.csv"}})


def test_a_threshold_of_a_metric_that_the_model_does_not_have_is_refused(check):
    with pytest.raises(FinalError, match="'acuracy' is not a metric of the model, did you mean 'a"):
        check(gate=[Rule(kind="at_least", metric="acuracy", bound=0.5)])


def test_a_transform_that_fails_is_explained_without_internal_names(check, tmp_path):
    (tmp_path / "table.csv").write_text("word,label\nred,0\nblue,1\n")
    model = module(
        build_model=lambda _: compiled(keras.layers.Dense(2, activation="softmax")),
        transform=lambda features: (
            tf.strings.to_number(features["word"])[:, None],
            features["label"],
        ),
    )
    message = r"fails on record 0 \(from 0\) of [^:]*: StringToNumberOp could not correctly convert"
    with pytest.raises(FinalError, match=message):
        check(model=model, prepare={"source": {"kind": "csv", "url": tmp_path.as_uri()}})


def test_a_step_on_missing_values_names_their_columns(check, tmp_path):
    (tmp_path / "table.csv").write_text("size,age,label\n1.0,2.0,0\n,3.0,1\n")
    model = module(
        build_model=lambda _: compiled(keras.layers.Dense(2, activation="softmax")),
        transform=lambda features: (features["size"][:, None], features["label"]),
    )
    with pytest.raises(FinalError, match=r"columns have missing values: size \(1\)$"):
        check(model=model, prepare={"source": {"kind": "csv", "url": tmp_path.as_uri()}})


def test_statistics_of_the_first_records_reach_the_transform(check, tmp_path):
    (tmp_path / "table.csv").write_text("size,label\n1.0,0\n3.0,1\n")
    seen = []

    def transform(features, statistics):
        seen.append(statistics["size"]["mean"])
        return features["size"][:, None], features["label"]

    model = module(
        build_model=lambda _: compiled(keras.layers.Dense(2, activation="softmax")),
        transform=transform,
    )
    check(model=model, prepare={"source": {"kind": "csv", "url": tmp_path.as_uri()}})
    assert seen[0] == pytest.approx(2.0)


@pytest.mark.parametrize(
    ("strategy", "replicas", "more", "expected"),
    [
        ("one_device", CHIEF_ALONE, {}, ("one_device", 1, 1, True)),
        ("mirrored", CHIEF_ALONE, {"gpus": 2}, ("mirrored", 2, 2, False)),
        ("multi_worker_mirrored", WITH_PEERS, {}, ("mirrored", 2, 3, True)),
        ("parameter_server", WITH_PS, {}, ("one_device", 1, 1, True)),
        ("tpu", CHIEF_ALONE, {}, ("one_device", 1, 1, False)),
        ("dtensor", WITH_PEERS, {}, ("dtensor", 3, 1, True)),
        ("dtensor", CHIEF_ALONE, {"mesh": {"batch": 2, "model": 2}}, ("dtensor", 4, 1, True)),
    ],
)
def test_one_process_stands_for_all_replicas(digits, strategy, replicas, more, expected):
    gpus = more.pop("gpus", 0)
    job = digits.job("train", "tried", {}, strategy=strategy, replicas=replicas)
    trial = Trial.of(job, TrainArguments(model="m", data="", **more), gpus)
    assert (trial.strategy, trial.devices, trial.replicas, trial.runs) == expected


def test_the_check_has_the_environment_of_the_chief_and_none_of_its_devices(digits):
    chief = ReplicaSpec(
        role=Role.CHIEF, resources=Resources(gpu=2, memory="4Gi"), environment={"A": "b"}
    )
    training = digits.job("train", "gpus", {}, replicas=(chief,))
    [replica] = check_of(training, DIGITS, name="check", task="check").replicas
    assert replica.resources == Resources(memory="4Gi")
    assert replica.environment == {"A": "b"}


def test_replicas_on_virtual_devices_are_tried_by_hand_and_leave_nothing(tmp_path):
    options = ["--code", str(MODELS), "--source", "text", "--model", "text"]
    with start_python(["-m", "aerotrain", "check", *options], tmp_path) as process:
        assert "builds and makes a step under 'one_device'" in process.communicate(timeout=60)[0]
    options = ["--code", str(MODELS), "--source", "tabular", "--model", "tabular"]
    options += ["--strategy", "multi_worker_mirrored", "--workers", "1"]
    with start_python(["-m", "aerotrain", "check", *options], tmp_path) as process:
        said = process.communicate(timeout=60)[0]
        assert process.returncode == ExitCode.OK, said
    assert "builds and makes a step under 'multi_worker_mirrored'" in said
    assert not list(tmp_path.iterdir())
