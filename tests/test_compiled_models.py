"""Every option of a compiled model trains as it does under ``fit``, or is rejected."""

import json
from functools import cache

import keras
import numpy as np
import pytest
import tensorflow as tf
from keras import layers, optimizers

from aerotrain.contract.errors import ExitCode, FinalError
from aerotrain.contract.steps import ExportArguments
from aerotrain.contract.training import TrainArguments
from aerotrain.evaluation import evaluate
from aerotrain.serving import export
from aerotrain.training.model.checks import check_asynchronous
from aerotrain.training.model.code import UserCode
from aerotrain.training.model.whole_batches import warn_of_layer_state
from aerotrain.training.model_manifest import ModelManifest
from aerotrain.training.step_runner import LocalStepRunner
from aerotrain.training.steps import remote
from aerotrain.training.steps.custom import CustomStep, has_custom_step
from aerotrain.training.steps.remote import RemoteStep
from aerotrain.training.steps.step import TrainStep
from aerotrain.training.steps.updates import LARGE
from aerotrain.training.strategies import ENGINES
from aerotrain.training.train import run
from support.training_fixtures import read_until

pytestmark = pytest.mark.process

STEPS = 12
CROSS_ENTROPY = keras.losses.SparseCategoricalCrossentropy(from_logits=True)


def batches(weighted=False, outputs=1):
    """Twelve batches of synthetic examples; the last is smaller."""
    draw = np.random.default_rng(7)
    x = draw.normal(size=(STEPS * 16 - 5, 8)).astype(np.float32)
    y = draw.integers(0, 3, len(x))
    labels = y if outputs == 1 else {"digit": y, "sum": x.sum(axis=1, keepdims=True)}
    weights = (draw.uniform(0.1, 2.0, len(x)).astype(np.float32),) if weighted else ()
    return tf.data.Dataset.from_tensor_slices((x, labels, *weights)).batch(16)


def classifier(*hidden, model=keras.Sequential, optimizer="sgd", **compiled):
    network = model([layers.Dense(12, activation="relu"), *hidden, layers.Dense(3)])
    network.compile(optimizer, **{"loss": CROSS_ENTROPY, "metrics": ["accuracy"], **compiled})
    return network


def optimized(kind, **options):
    return lambda: classifier(optimizer=getattr(optimizers, kind)(**options))


class Adding(layers.Layer):
    """Adds a loss, and keeps a metric of its own."""

    def __init__(self):
        super().__init__()
        self.size = keras.metrics.Mean(name="size")

    def call(self, x):
        self.add_loss(0.01 * keras.ops.mean(keras.ops.square(x)))
        self.size.update_state(keras.ops.abs(x))
        return x


class Remembering(layers.Layer):
    """Divides by a moving mean of its own, which it updates first; counts its calls."""

    def build(self, _shape):
        own = {"shape": (), "trainable": False}
        self.scale = self.add_weight(**own, initializer="ones", name="scale")
        self.calls = self.add_weight(**own, initializer="zeros", dtype="int32", name="calls")

    def call(self, x):
        self.scale.assign(0.9 * self.scale + 0.1 * keras.ops.mean(keras.ops.abs(x)))
        self.calls.assign_add(1)
        return x / self.scale


class Seeing(keras.Sequential):
    """Measures its own outputs while it is called: their mean, and the largest of them."""

    def __init__(self, *args, **options):
        super().__init__(*args, **options)
        self.mean = keras.metrics.Mean(name="mean")
        self.most = Largest(name="most")

    def call(self, x, training=None):
        outputs = super().call(x, training=training)
        self.mean.update_state(outputs)
        self.most.update_state(outputs)
        return outputs


class Largest(keras.metrics.Metric):
    def __init__(self, name):
        super().__init__(name=name)
        self.kept = self.add_weight(name="kept", initializer="zeros")

    def update_state(self, values):
        self.kept.assign(keras.ops.maximum(self.kept, keras.ops.max(values)))

    def result(self):
        return 1.0 * self.kept


class OwnTraining(keras.Sequential):
    """Has a train step of its own, which keeps one metric and also returns the loss."""

    def __init__(self, *args, **options):
        super().__init__(*args, **options)
        self.seen = keras.metrics.Mean(name="seen")

    def train_step(self, data):
        x, y = data
        with tf.GradientTape() as tape:
            loss = self.compute_loss(y=y, y_pred=self(x, training=True))
        gradients = tape.gradient(loss, self.trainable_weights)
        self.optimizer.apply(gradients, self.trainable_weights)
        self.seen.update_state(loss)
        return {"seen": self.seen.result(), "loss": loss}


def frozen():
    model = classifier(layers.Dense(12), layers.BatchNormalization())
    model.layers[1].trainable = False
    model.compile("adam", CROSS_ENTROPY, metrics=["accuracy"])
    return model


def looked_up():
    """A large table, of which each batch looks up only four rows, many times."""
    model = keras.Sequential(
        [
            layers.Discretization([-1.0, 0.0, 1.0]),
            layers.Embedding(4, LARGE // 4),
            layers.GlobalAveragePooling1D(),
            layers.Dense(3),
        ]
    )
    model.compile(optimizers.AdamW(0.05), CROSS_ENTROPY, metrics=["accuracy"])
    return model


def two_outputs():
    inputs = keras.Input((8,))
    hidden = layers.Dense(12, activation="relu")(inputs)
    model = keras.Model(
        inputs,
        {
            "digit": layers.Dense(3, name="digit")(hidden),
            "sum": layers.Dense(1, name="sum")(hidden),
        },
    )
    model.compile(
        optimizers.Adam(0.01),
        loss={"digit": CROSS_ENTROPY, "sum": "mse"},
        loss_weights={"digit": 0.3, "sum": 0.7},
        metrics={"digit": ["accuracy"], "sum": ["mae"]},
    )
    return model


MODELS = {
    "a schedule": optimized("SGD", learning_rate=optimizers.schedules.CosineDecay(0.1, 10)),
    "clipped by the global norm": optimized("SGD", global_clipnorm=0.1),
    "weight decay": optimized("AdamW", weight_decay=0.1),
    "averaged weights": optimized("SGD", use_ema=True, ema_momentum=0.5),
    "averages that overwrite": optimized("SGD", use_ema=True, ema_overwrite_frequency=5),
    "accumulated gradients": optimized("Adam", gradient_accumulation_steps=4),
    "a scaled loss": lambda: classifier(
        optimizer=optimizers.LossScaleOptimizer(optimizers.Adam(), dynamic_growth_steps=3)
    ),
    # The first scale is too large, so the first steps are skipped and not counted.
    "a loss scaled too much": lambda: classifier(
        optimizer=optimizers.LossScaleOptimizer(optimizers.Adam(0.1), initial_scale=2.0**127)
    ),
    "a constraint": lambda: classifier(layers.Dense(8, kernel_constraint="unit_norm")),
    "a sum for a loss": lambda: classifier(
        loss=keras.losses.SparseCategoricalCrossentropy(from_logits=True, reduction="sum")
    ),
    "a mean with weights": lambda: classifier(
        loss=keras.losses.SparseCategoricalCrossentropy(
            from_logits=True, reduction="mean_with_sample_weight"
        )
    ),
    "regularization and dropout": lambda: classifier(
        layers.Dense(9, kernel_regularizer="l2", activity_regularizer="l1"), layers.Dropout(0.3)
    ),
    "an added loss and a metric in a layer": lambda: classifier(
        Adding(), layers.BatchNormalization(), layers.Dense(4, kernel_regularizer="l2")
    ),
    "state of its own": lambda: classifier(Remembering()),
    "metrics of its own call": lambda: classifier(layers.Dropout(0.3), model=Seeing),
    "a frozen layer": frozen,
    "a table of embeddings": looked_up,
    "large weights": lambda: classifier(layers.Dense(LARGE // 12 + 1), optimizer="adam"),
    "weights of examples": lambda: classifier(weighted_metrics=["accuracy"]),
    "several outputs": two_outputs,
}
DATA = {"weights of examples": {"weighted": True}, "several outputs": {"outputs": 2}}


def trained_by_fit(user, data, dtype_policy="float32", **options):
    """The model, and the logs of each batch."""
    keras.utils.set_random_seed(3)
    model = user.build({}, data.element_spec, dtype_policy)
    history = []
    log = keras.callbacks.LambdaCallback(on_train_batch_end=lambda _, logs: history.append(logs))
    model.fit(data, callbacks=[log], verbose=0, **options)
    return model, history


def trained_by_us(user, data, dtype_policy="float32", per_execution=1, step_of=TrainStep):
    """The model, and the metrics after each execution."""
    distribution = ENGINES["one_device"].build(TrainArguments(model="here", data=""))
    with distribution.scope():
        keras.utils.set_random_seed(3)
        model = user.build({}, data.element_spec, dtype_policy)
        counter = tf.Variable(0, dtype=tf.int64)
        if has_custom_step(model):
            step = CustomStep(model, counter, data.element_spec)
        else:
            step = step_of(model, counter)
    step_runner = LocalStepRunner(distribution, step, data, per_execution)
    results = [step.metrics.results(ran.sums) for ran in step_runner.run(STEPS)]
    assert counter.numpy() == STEPS
    with distribution.scope():
        model.optimizer.finalize_variable_values(model.trainable_variables)
    return model, results


def assert_same(ours, theirs, rtol=1e-4, atol=1e-5):
    (our_model, our_logs), (their_model, their_logs) = ours, theirs
    assert [each.keys() for each in our_logs] == [each.keys() for each in their_logs]
    for name in their_logs[0]:
        np.testing.assert_allclose(
            [each[name] for each in our_logs], [each[name] for each in their_logs], rtol, atol, name
        )
    for our, their in zip(our_model.variables, their_model.variables, strict=True):
        np.testing.assert_allclose(our.numpy(), their.numpy(), rtol, atol, err_msg=our.path)
    our_count, their_count = our_model.optimizer.iterations, their_model.optimizer.iterations
    assert our_count.numpy() == their_count.numpy() if hasattr(our_count, "numpy") else True


def user_of(build):
    return UserCode("here", lambda _: build(), lambda features: features)


@cache
def fitted(kind):
    """The model of that kind after a training by ``fit``, and the logs of each batch."""
    return trained_by_fit(user_of(MODELS[kind]), data_of(kind))


def data_of(kind):
    return batches(**DATA.get(kind, {}))


@pytest.mark.parametrize("kind", MODELS)
def test_a_compiled_model_trains_as_fit_does_step_for_step(kind):
    assert_same(trained_by_us(user_of(MODELS[kind]), data_of(kind)), fitted(kind))


#: Models whose variables differ in what updates them: a worker packs the small ones into one.
PACKED = [
    *("averaged weights", "averages that overwrite", "accumulated gradients", "a scaled loss"),
    *("a constraint", "an added loss and a metric in a layer", "state of its own"),
    *("metrics of its own call", "a frozen layer", "a table of embeddings", "large weights"),
]


@pytest.mark.parametrize(
    ("kind", "size"),
    [*((kind, remote.PACKED_BYTES) for kind in PACKED), ("a table of embeddings", 0)],
)
def test_a_worker_with_packed_variables_computes_the_steps_of_fit(kind, size, monkeypatch):
    monkeypatch.setattr(remote, "PACKED_BYTES", size)
    ours = trained_by_us(user_of(MODELS[kind]), batches(), step_of=RemoteStep)
    assert_same(ours, fitted(kind))


@pytest.mark.parametrize("dtype_policy", ["mixed_bfloat16", "mixed_float16"])
def test_mixed_precision_trains_as_fit_does(dtype_policy):
    user, data = user_of(classifier), batches()
    ours, theirs = (
        trained_by_us(user, data, dtype_policy),
        trained_by_fit(user, data, dtype_policy, epochs=1),
    )
    assert ours[0].layers[0].compute_dtype == dtype_policy.removeprefix("mixed_")
    assert keras.config.dtype_policy().name == "float32"
    assert_same(ours, theirs, rtol=0.02, atol=0.01)


@pytest.mark.parametrize("labels", ["numbers", "one-hot"])
def test_class_weights_have_the_effect_that_they_have_in_fit(labels):
    loss = CROSS_ENTROPY
    data = batches()
    if labels == "one-hot":
        loss = keras.losses.CategoricalCrossentropy(from_logits=True)
        data = data.map(lambda x, y: (x, tf.one_hot(y, 3)))
    user = user_of(lambda: classifier(loss=loss, weighted_metrics=["accuracy"]))
    weighing = user.weighing({"0": 3.0, "1": 0.5})
    ours = trained_by_us(user, data.map(lambda x, y: weighing.transform((x, y))))
    assert_same(ours, trained_by_fit(user, data, class_weight={0: 3.0, 1: 0.5, 2: 1.0}))


def test_class_weights_and_sample_weights_together_are_refused():
    user = user_of(classifier).weighing({"0": 3.0})
    with pytest.raises(FinalError, match="weights of examples, and class_weight asks for others"):
        batches(weighted=True).map(lambda *batch: user.transform(batch))
    with pytest.raises(FinalError, match="needs one label for each example"):
        batches(outputs=2).map(lambda *batch: user.transform(batch))


def test_a_model_with_its_own_train_step_trains_as_fit_does():
    user, data = user_of(lambda: classifier(model=OwnTraining, metrics=None)), batches()
    model, ours = trained_by_us(user, data)
    theirs, history = trained_by_fit(user, data)
    np.testing.assert_allclose([each["seen"] for each in ours], [each["seen"] for each in history])
    # For a value that is not a metric we log the mean so far, and fit the last batch alone.
    losses = np.cumsum([each["loss"] for each in history]) / np.arange(1, STEPS + 1)
    np.testing.assert_allclose([each["loss"] for each in ours], losses, rtol=1e-5)
    for our, their in zip(model.variables, theirs.variables, strict=True):
        np.testing.assert_allclose(our.numpy(), their.numpy(), rtol=1e-5, atol=1e-6)


class Hiding(layers.Layer):
    """Its loss stays finite when its weight is not: a batch of zeros has a gradient of NaN."""

    def build(self, _shape):
        self.scale = self.add_weight(shape=(), initializer="ones", name="scale")

    def call(self, x):
        norm = keras.ops.sqrt(keras.ops.mean(keras.ops.square(x)) * keras.ops.square(self.scale))
        return x + keras.ops.where(keras.ops.isfinite(norm), norm, 0.0)


#: What spoils the features of a batch, and the layers that it spoils.
SPOILT = {"the loss": (np.nan, ()), "a weight": (0.0, (Hiding,))}


@pytest.mark.parametrize(
    ("step_of", "what", "per_execution"),
    [
        (TrainStep, "the loss", 1),
        (TrainStep, "a weight", 5),
        (RemoteStep, "the loss", 5),
        (RemoteStep, "a weight", STEPS),
        (CustomStep, "the loss", STEPS),
        (CustomStep, "a weight", 5),
    ],
)
def test_the_first_step_with_a_value_that_is_not_finite_is_reported(step_of, what, per_execution):
    value, spoilt_layers = SPOILT[what]

    def spoilt(number, batch):
        x, y = batch
        return tf.where(number == 7, value, x), y

    def linear():
        kind = OwnTraining if step_of is CustomStep else keras.Sequential
        network = kind([*(each() for each in spoilt_layers), layers.Dense(3)])
        network.compile("sgd", CROSS_ENTROPY)
        return network

    data = batches().enumerate().map(spoilt)
    distribution = ENGINES["one_device"].build(TrainArguments(model="here", data=""))
    with distribution.scope():
        built = user_of(linear).build({}, data.element_spec)
        counter = tf.Variable(0, dtype=tf.int64)
        spec = (data.element_spec,) if step_of is CustomStep else ()
        step = step_of(built, counter, *spec)
    step_runner = LocalStepRunner(distribution, step, data, per_execution)
    found = [step.metrics.bad_step(ran.sums) for ran in step_runner.run(STEPS)]
    ends = [min(end + per_execution, STEPS) for end in range(0, STEPS, per_execution)]
    assert found == [8 if number >= 8 else None for number in ends]


@pytest.mark.parametrize(
    ("build", "message"),
    [
        (lambda: frozen_whole(), "has no trainable weights; leave trainable=True"),
        (lambda: sharded(), "sets keras.distribution, which shards nothing under TensorFlow"),
    ],
)
def test_a_model_that_no_strategy_can_train_is_refused(build, message):
    try:
        with pytest.raises(FinalError, match=message):
            user_of(build).build({}, batches().element_spec)
    finally:
        keras.distribution.set_distribution(None)


def frozen_whole():
    model = classifier()
    model.trainable = False
    return model


def sharded():
    mesh = keras.distribution.DeviceMesh((1, 1), ["batch", "model"], np.array(["cpu:0"]))
    layout = keras.distribution.LayoutMap(mesh)
    keras.distribution.set_distribution(keras.distribution.ModelParallel(layout_map=layout))
    return classifier()


def test_run_eagerly_is_refused_with_a_one_sentence_reason(capsys):
    user_of(lambda: classifier(run_eagerly=True)).build({}, batches().element_spec)
    assert "run_eagerly=True has no effect here" in capsys.readouterr().out


def test_a_model_of_mixed_precision_is_evaluated_and_exported(digits, tmp_path):
    url = run(
        digits.replica(
            "train",
            "mixed-float16",
            model="small",
            data=digits.data,
            epochs=3,
            dtype_policy="mixed_float16",
        )
    )
    assert ModelManifest.load(url).dtype_policy == "mixed_float16"
    measured = evaluate.run(digits.replica("evaluate", "mixed", model=url, data=digits.data))
    assert measured["accuracy"] > 0.85
    saved, check = tmp_path / "saved", tmp_path / "check"
    replica = digits.replica("export", "mixed")
    export.write(replica, ExportArguments(model=url, data=digits.data), saved, check)
    export.verify(saved, check)


@pytest.mark.parametrize(
    ("steps_per_execution", "newest"),
    [(7, "54$"), (1, r"[1-5]\d$")],  # not a step whose gradient made a weight infinite
)
def test_a_loss_that_is_not_finite_ends_training_and_keeps_the_last_good_checkpoint(
    digits, steps_per_execution, newest
):
    replica = digits.replica(
        "train",
        f"exploding-{steps_per_execution}",
        model="exploding",
        data=digits.data,
        epochs=4,
        steps_per_execution=steps_per_execution,
        checkpoint_interval=1e-6,
    )
    message = rf"the loss of step 60, or a weight after it, is no finite.*00000000{newest}"
    with pytest.raises(FinalError, match=message):
        run(replica)


def test_training_with_parameter_servers_stops_at_a_loss_that_is_not_finite(digits):
    with digits.cluster("exploding-servers", model="exploding", epochs=4) as processes:
        said = read_until(processes["chief"], "error:")
        assert processes["chief"].wait(60) == ExitCode.FINAL
    assert "is no finite number" in said
    assert "no checkpoint was made" in said


@pytest.mark.parametrize(
    ("layer", "synchronized", "is_named"),
    [
        (lambda: layers.BatchNormalization(name="norm"), False, True),
        (lambda: layers.BatchNormalization(name="norm"), True, False),
        (lambda: layers.BatchNormalization(name="norm", synchronized=True), False, False),
        (lambda: layers.BatchNormalization(name="norm", trainable=False), False, False),
    ],
)
def test_a_normalization_by_pieces_of_a_batch_is_named(layer, synchronized, is_named, capsys):
    warn_of_layer_state("mirrored", classifier(layer()), synchronized=synchronized)
    assert ("BatchNormalization ('norm') normalizes each piece" in capsys.readouterr().out) == (
        is_named
    )


@pytest.mark.parametrize(
    ("build", "message"),
    [
        (
            MODELS["accumulated gradients"],
            "acts in some steps only, which 'parameter_server' cannot",
        ),
        (
            lambda: classifier(model=OwnTraining),
            "OwnTraining has a train_step of its own.*'parameter_server' loses updates",
        ),
    ],
)
def test_parameter_servers_refuse_what_workers_cannot_do_at_once(build, message):
    model = build()
    check_asynchronous("multi_worker_mirrored", model)
    with pytest.raises(FinalError, match=message):
        check_asynchronous("parameter_server", model)


def test_parameter_servers_train_with_a_scaled_loss_and_metrics_in_layers(digits):
    arguments = {"model": "laden", "epochs": 6, "class_weight": {"3": 2.0}, "validate": True}
    with digits.cluster("laden", **arguments) as processes:
        read_until(processes["chief"], "epoch 6 of 6")
        assert processes["chief"].wait(60) == ExitCode.OK
    folder = digits.folder / "store/runs/laden/train"
    trained = ModelManifest.load(json.loads((folder / "result.json").read_text())["value"])
    assert trained.step == 240
    assert trained.metrics["accuracy"] > 0.8
    assert trained.metrics["val_accuracy"] > 0.8
    assert 0 < trained.metrics["size"] < 10
    reader = tf.train.load_checkpoint(str(folder / "checkpoints/0001-0000000240/checkpoint"))
    counts = [name for name in reader.get_variable_to_shape_map() if "_iterations" in name]
    assert any(reader.get_tensor(name) == 240 for name in counts)
