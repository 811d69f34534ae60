"""The check of a model in the first task: what it finds before any data is prepared."""

import json
import re
import sys
from pathlib import Path
from types import ModuleType

import keras
import pytest
import tensorflow as tf

from aerotrain.check import Trial, run
from aerotrain.contract.errors import ExitCode, FinalError
from aerotrain.contract.replicas import ReplicaSpec, Resources, Role
from aerotrain.contract.steps import check_of
from aerotrain.contract.training import TrainArguments
from aerotrain.replica import Replica, exit_code_of
from aerotrain.standalone import CHIEF, prepare
from support.training_fixtures import MODELS, start_python

pytestmark = pytest.mark.process

CHIEF_ALONE = (ReplicaSpec(role=Role.CHIEF),)
WITH_PS = (
    ReplicaSpec(role=Role.CHIEF),
    ReplicaSpec(role=Role.WORKER, count=2),
    ReplicaSpec(role=Role.PS),
)
WITH_PEERS = (ReplicaSpec(role=Role.CHIEF), ReplicaSpec(role=Role.WORKER, count=2))
WITH_RANGE = (ReplicaSpec(role=Role.CHIEF), ReplicaSpec(role=Role.WORKER, count=3, least=1))
DIGITS = {"source": {"kind": "python", "module": "digits"}}


LATER = {"model": "", "data": ""}
JUDGED = {"evaluations": [{**LATER, "thresholds": {"accuracy": 0.5, "loss": 0.5}}]}


def check_job(digits, **given):
    """The check of a training of a model, by default on the source of the digits."""
    arguments = {"model": "small", "data": "", **given}
    other = {
        name: arguments.pop(name, default)
        for name, default in {
            "prepare": DIGITS,
            "evaluations": [LATER],
            "exports": [LATER],
        }.items()
    }
    replicas = arguments.pop("replicas", CHIEF_ALONE)
    strategy = arguments.pop("strategy", "one_device")
    job = digits.job("train", "checked", arguments, strategy=strategy, replicas=replicas)
    return check_of(job, name="check", task="check", **other)


@pytest.fixture
def check(digits, tmp_path):
    """Check a training in this process."""

    def check(**given):
        job = check_job(digits, **given)
        run(Replica(job=job, name=CHIEF, attempt="1", scratch=tmp_path))

    return check


def said_under_ps(digits, folder, model, more):
    """What a check says in a process of its own, which stays a member of its cluster."""
    given = {"strategy": "parameter_server", "replicas": WITH_PS, "model": model}
    job = check_job(digits, prepare={}, data=digits.data, **given, **more).to_json()
    script = str(Path(__file__).parent / "support" / "checks.py")
    with start_python([script, job], folder) as process:
        output = process.communicate(timeout=300)[0]
    [said] = [json.loads(line)["said"] for line in output.splitlines() if line[:8] == '{"said":']
    return said


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
            {"strategy": "multi_worker_mirrored", "replicas": WITH_PEERS, "batch_size": 32},
            "32 cannot be shared by the 3 replicas of 'multi_worker_mirrored'; use 30 or 33",
        ),
        (
            {"strategy": "multi_worker_mirrored", "replicas": WITH_RANGE, "batch_size": 33},
            "33 cannot be shared by the chief and 1 or 3 workers, which workers=1..3 may become; "
            "use 36",
        ),
        ({"model": "uncompiled"}, "returned is not compiled; call model.compile"),
        ({"model": "nameless"}, "no function build_model.*did you mean 'build_modle'"),
        (
            {"validate": True, "prepare": {**DIGITS, "splits": {"train": 1.0}}},
            "no split 'validation'",
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
    exports = [{**LATER, "formats": formats}]
    with pytest.raises(FinalError, match=message):
        check(model="text", prepare=prepare, exports=exports)


def fractions(features):
    return scaled(features)[0], tf.cast(features["label"], tf.float32) + 0.25


def weighted(features):
    return *scaled(features), tf.ones(tf.shape(features["label"]))


@pytest.mark.parametrize(
    ("transform", "loss", "message"),
    [
        (scaled, "sparse_categorical_crossentropy", r"^class_weight names the class 12,.*0 to 9"),
        (
            lambda each: (scaled(each)[0], tf.one_hot(each["label"], 10)),
            "categorical_crossentropy",
            "^class_weight names the class 12,.*0 to 9",
        ),
        (fractions, "mse", r"^class_weight needs labels that are classes, .* \d.25; leave it out"),
        (weighted, "sparse_categorical_crossentropy", "^the transform returns weights of examples"),
    ],
)
def test_weights_of_classes_that_a_training_does_not_have_are_refused(
    check, transform, loss, message
):
    model = module(
        build_model=lambda _: compiled(keras.layers.Dense(10), loss=loss), transform=transform
    )
    with pytest.raises(FinalError, match=message):
        check(model=model, class_weight={"12": 2.0})


def test_a_transform_that_looks_up_a_missing_column_is_told_which_there_are(check):
    def transform(features):
        return features["images"], features["label"]

    model = module(build_model=lambda _: compiled(keras.layers.Dense(10)), transform=transform)
    message = r"up 'images' \(line \d+ of test_check.py\).*mean 'image'\?; .* are image, label"
    with pytest.raises(FinalError, match=message):
        check(model=model)


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
        check(model=model, prepare={"source": source})


@pytest.mark.parametrize(("records", "refused"), [(None, True), (96, False)])
def test_a_model_for_batches_of_one_size_is_refused_where_the_last_batch_is_smaller(
    check, digits, tmp_path, records, refused
):
    def build(hparams):
        model = keras.Sequential(
            [
                keras.Input(batch_shape=(hparams["batch_size"], 2, 1)),
                keras.layers.SimpleRNN(4, stateful=True),
                keras.layers.Dense(10, activation="softmax"),
            ]
        )
        model.compile("sgd", "sparse_categorical_crossentropy")
        return model

    def transform(features):
        return tf.stack([features["a"], features["b"]], 1)[..., None], features["label"]

    rows = [f"{number}.0,{number % 7}.0,{number % 10}" for number in range(records or 200)]
    (tmp_path / "table.csv").write_text("\n".join(["a,b,label", *rows]) + "\n")
    source = {"kind": "csv", "url": (tmp_path / "table.csv").as_uri()}
    given = {"model": module(build_model=build, transform=transform), "batch_size": 48}
    where = {"prepare": {"source": source}}
    if records:
        splits = {"train": 1.0}
        data = prepare(digits.store, tmp_path / "prepared", source, splits=splits)
        where = {"prepare": {}, "data": data}
    later = {"evaluations": [], "exports": []}
    if refused:
        with pytest.raises(FinalError, match="48"):
            check(**given, **where, **later)
    else:
        check(**given, **where, **later)


@pytest.mark.parametrize(
    ("model", "more", "message"),
    [
        ("on_import", JUDGED, "the model of 'on_import' trains and is exported under 'param"),
        ("calling", {"jit_compile": True}, "jit_compile cannot be under 'parameter_server'"),
    ],
)
def test_a_training_on_ps_is_tried_on_a_ps(digits, tmp_path, model, more, message):
    assert re.search(message, said_under_ps(digits, tmp_path, model, more))


@pytest.mark.parametrize(
    ("source", "message"),
    [
        ({"kind": "csv", "url": "TABLES/dt=2026-11-25/"}, "dt=2026-11-25.*is empty|no "),
        ({"kind": "csv", "url": "TABLES/gone.csv"}, "gone.csv"),
        (
            {"kind": "csv", "url": "TABLES/table.csv", "types": {"size": "int64"}},
            "has no valid record; the first one is rejected: .*size",
        ),
        ({"kind": "parquet", "url": "TABLES/table.csv"}, "table.csv"),
        ({"kind": "python", "module": "needing"}, "no_such_package"),
    ],
    ids=[
        "no folder of that day",
        "a file that is gone",
        "every record rejected",
        "wrong type",
        "a missing package",
    ],
)
def test_a_source_that_can_never_be_read_ends_the_first_task(check, tmp_path, source, message):
    (tmp_path / "table.csv").write_text("size,label\n1.5,0\n3.5,1\n")
    source = {
        n: each.replace("TABLES", tmp_path.as_uri()) if n == "url" else each
        for n, each in source.items()
    }
    with pytest.raises(Exception, match=message) as found:
        check(prepare={"source": source})
    assert exit_code_of(found.value) == ExitCode.FINAL


def test_a_source_without_a_scheme_is_refused(check):
    with pytest.raises(FinalError, match=r"./a/table\.csv. names no store"):
        check(prepare={"source": {"kind": "csv", "url": "/a/table.csv"}})


def test_a_threshold_of_a_metric_that_the_model_does_not_have_is_refused(check):
    with pytest.raises(FinalError, match="'acuracy' is not a metric of the model, did you mean 'a"):
        check(evaluations=[{**LATER, "thresholds": {"acuracy": 0.5}}])


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
    with pytest.raises(FinalError, match=r"columns have missing values: size \(1\)"):
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
        ("one_device", CHIEF_ALONE, {}, (1, 1, True)),
        ("mirrored", CHIEF_ALONE, {"gpus": 2}, (2, 2, False)),
        ("multi_worker_mirrored", WITH_PEERS, {}, (2, 3, True)),
        ("parameter_server", WITH_PS, {}, (1, 1, True)),
        ("tpu", CHIEF_ALONE, {}, (1, 1, False)),
        ("dtensor", WITH_PEERS, {}, (3, 1, True)),
        ("dtensor", CHIEF_ALONE, {"mesh": {"batch": 2, "model": 2}}, (4, 1, True)),
    ],
)
def test_devices_of_one_process_stand_for_all_replicas(digits, strategy, replicas, more, expected):
    gpus = more.pop("gpus", 0)
    job = digits.job("train", "tried", {}, strategy=strategy, replicas=replicas)
    trial = Trial.of(job, TrainArguments(model="m", data="", **more), gpus, None)
    assert (trial.devices, trial.replicas, trial.runs) == expected


def test_the_check_has_the_environment_of_the_chief_and_none_of_its_devices(digits):
    chief = ReplicaSpec(
        role=Role.CHIEF, resources=Resources(gpu=2, memory="4Gi"), environment={"A": "b"}
    )
    training = digits.job("train", "gpus", {}, replicas=(chief,))
    [replica] = check_of(training, DIGITS, name="check", task="check").replicas
    assert replica.resources == Resources(memory="4Gi")
    assert replica.environment == {"A": "b"}


def test_replicas_on_virtual_devices_are_tried_by_hand_and_leave_nothing(tmp_path):
    options = ["--code", str(MODELS), "--source", "tabular", "--model", "tabular"]
    options += ["--strategy", "multi_worker_mirrored", "--workers", "1"]
    with start_python(["-m", "aerotrain", "check", *options], tmp_path) as process:
        said = process.communicate(timeout=240)[0]
        assert process.returncode == ExitCode.OK, said
    assert "trains and is exported under 'multi_worker_mirrored'" in said
    assert not list(tmp_path.iterdir())
