"""A mistake in the user's model is one sentence, with the line of their module."""

import textwrap

import keras
import pytest
import tensorflow as tf

from aerotrain.contract.errors import ExitCode, FinalError, message_of
from aerotrain.training.model.code import UserCode
from aerotrain.training.model.error_messages import errors_translated, explained

pytestmark = pytest.mark.process

BATCH = (tf.TensorSpec([None, 8]), tf.TensorSpec([None], tf.int64))


def module(name, layers, optimizer="'adam'", loss="'sparse_categorical_crossentropy'"):
    return name, textwrap.dedent(
        f"""\
        import keras

        class Failing(keras.layers.Layer):
            def call(self, x):
                return keras.ops.reshape(x, (-1, 7, 8)) @ keras.ops.ones((7, 8))

        def build_model(hparams):
            model = keras.Sequential({layers})
            model.compile({optimizer},
                          {loss})
            return model
        """
    )


DENSE = "[keras.layers.Dense(3)]"

#: Modules with a mistake, and what is said of it.
MISTAKES = {
    "an optimizer": (
        module("misspelt_optimizer", DENSE, optimizer="'adamm'"),
        r"has a mistake \(line 9 of misspelt_optimizer.py, in build_model\): .*adamm",
    ),
    "a loss": (
        module("misspelt_loss", DENSE, loss="'sparse_categorical_crosentropy'"),
        r"compiled in line 9 of misspelt_loss.py\): .*loss identifier: sparse_categorical_crosen",
    ),
    "a shape of inputs": (
        module("wrong_inputs", "[keras.Input((9,)), keras.layers.Dense(3)]"),
        r"compiled in line 9 of wrong_inputs.py\): .*9.*its batches are x float32 \(None, 8\), "
        r"y int64 \(None,\)$",
    ),
    "a shape of outputs": (
        module("wrong_outputs", DENSE, loss="'categorical_crossentropy'"),
        r"line 9 of wrong_outputs.py\): .*shape.*; its batches are x float32",
    ),
    "a layer": (
        module("wrong_layer", "[Failing()]"),
        r"has a mistake \(line 5 of wrong_layer.py, in call\): [^\n]*$",
    ),
}


@pytest.mark.parametrize("what", MISTAKES)
def test_a_mistake_in_a_model_is_one_sentence_with_its_line(what, tmp_path, monkeypatch):
    (name, text), message = MISTAKES[what]
    (tmp_path / f"{name}.py").write_text(text)
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(FinalError, match=message) as raised:
        UserCode.load(name).build({}, BATCH)
    assert "\n" not in str(raised.value)


def test_an_error_of_the_users_own_keeps_its_traceback(tmp_path, monkeypatch):
    (tmp_path / "missing_key.py").write_text("def build_model(hparams):\n    hparams['units']\n")
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(KeyError):
        UserCode.load("missing_key").build({}, BATCH)


def labels_out_of_range():
    """The error of TensorFlow's kernel."""

    @tf.function
    def loss(labels):
        return tf.nn.sparse_softmax_cross_entropy_with_logits(labels, tf.zeros([2, 3]))

    try:
        loss(tf.constant([1, 7]))
    except tf.errors.InvalidArgumentError as error:
        return error


def build_model(_hparams):
    raise AssertionError


def test_a_label_out_of_range_is_named_with_what_the_model_accepts():
    said = str(explained(labels_out_of_range(), "mine", build_model))
    assert said.startswith(
        "a label is 7, and the model of 'mine' has outputs for the labels 0 to 2"
    )


def test_a_label_out_of_range_is_explained_on_parameter_servers(digits):
    with digits.cluster("few-labels", model="few_labels", epochs=4) as processes:
        said, _ = processes["chief"].communicate(60)
        assert processes["chief"].wait(60) == ExitCode.FINAL
    assert "has outputs for the labels 0 to 4 (compiled in line" in said


def test_a_process_that_computes_alone_over_all_replicas_is_no_lost_process(tmp_path):
    code = UserCode("m", None, None)
    said = "Collective ops is aborted by: Collective instance 118 expected type 0 but got type 1"
    translated = errors_translated(code, None, "", "train", tmp_path)  # no record is read
    with pytest.raises(FinalError, match="no callback of 'm' compute over all"), translated:
        raise tf.errors.InternalError(None, None, said)


class OfTwoValuesError(Exception):
    def __init__(self, one, other):
        super().__init__(one, other)


@pytest.mark.parametrize(
    ("error", "message"),
    [
        (KeyError("units"), "units"),
        (AttributeError("no units"), "no units"),
        (ValueError("it is long\n\nand has an end"), "it is long\n\nand has an end"),
        (tf.errors.InvalidArgumentError(None, None, "no units"), "no units"),
        (OfTwoValuesError("one", 2), "one"),
        (AssertionError(), ""),
    ],
    ids=lambda value: type(value).__name__,
)
def test_an_error_in_a_layer_is_reported_without_the_arguments_of_the_layer(error, message):
    class Raising(keras.layers.Layer):
        def call(self, x, **kwargs):
            raise error

    with pytest.raises(Exception, match=r"inspect\._empty") as raised:
        Raising()(tf.zeros([1]))
    assert message_of(raised.value) == message


def test_an_error_in_a_layer_of_keras_2_is_reported_without_its_arguments():
    where = "layer 'dense' (type Dense)"
    text = (
        f"Exception encountered when calling {where}.\n\nbad\n\nCall arguments received by {where}:"
    )
    assert message_of(ValueError(f"{text}\n  • inputs=1")) == "bad"
