"""A small model with callbacks that change everything that a callback can reach."""

import keras
import numpy as np
import tensorflow as tf
from small import transform  # noqa: F401 -- it is this module's transform too

#: The calls that ``Recording`` has received, and the figures that ``Looking`` has computed.
RECORDED, LOOKED = [], []


class Annealed(keras.losses.Loss):
    """Cross-entropy times a variable."""

    def __init__(self):
        super().__init__()
        self.beta = keras.Variable(1.0, trainable=False, name="beta")

    def call(self, y_true, y_pred):
        losses = keras.losses.sparse_categorical_crossentropy(y_true, y_pred, from_logits=True)
        return self.beta * losses


def build_model(hparams):
    model = keras.Sequential([keras.layers.Flatten(), keras.layers.Dense(10)])
    optimizer = keras.optimizers.SGD(0.05, momentum=0.9, use_ema=True, ema_momentum=0.9)
    model.compile(optimizer, Annealed(), metrics=["accuracy"])
    return model


class Recording(keras.callbacks.Callback):
    """Keeps each call with its arguments, and ends the training in the hook ``stop``."""

    def __init__(self, stop=""):
        super().__init__()
        self.stop = stop

    def record(self, hook, *arguments, **options):
        [*number, logs] = [*arguments, *options.values()]
        RECORDED.append((hook, *number, dict(logs or {}), dict(self.params)))
        if hook == self.stop:
            self.model.stop_training = True


def _recorded(hook):
    return lambda self, *arguments, **options: self.record(hook, *arguments, **options)


for _hook in dir(keras.callbacks.Callback):
    if _hook.startswith("on_") and _hook not in ("on_batch_begin", "on_batch_end"):
        setattr(Recording, _hook, _recorded(_hook))


class Clipping(keras.callbacks.Callback):
    def on_train_batch_begin(self, batch, logs=None):
        for each in self.model.trainable_variables:
            each.value.assign(tf.clip_by_value(each.value, -0.1, 0.1))


class Annealing(keras.callbacks.Callback):
    """Changes a variable of the loss, and the learning rate."""

    def on_epoch_begin(self, epoch, logs=None):
        self.model.loss.beta.assign(1.0 / (1 + epoch))
        self.model.optimizer.learning_rate = 0.05 / (1 + epoch)


class Resetting(keras.callbacks.Callback):
    """Sets the optimizer's momentums to zero, and one weight to another."""

    def on_epoch_end(self, epoch, logs=None):
        for each in self.model.optimizer.variables:
            if "momentum" in each.path:
                each.assign(np.zeros(each.shape))
        kernel, bias = self.model.get_weights()
        self.model.set_weights([0.5 * kernel[::-1], bias])


class Looking(keras.callbacks.Callback):
    """Computes with the model at the end of each epoch, and saves it."""

    def on_epoch_end(self, epoch, logs=None):
        images = np.linspace(0, 1, 2 * 64, dtype="float32").reshape(2, 8, 8)
        mean = self.model.predict(images, verbose=0).mean()
        loss, _ = self.model.evaluate(images, np.array([1, 2]), verbose=0)
        self.model.save("looked.keras")
        saved = keras.saving.load_model("looked.keras", compile=False)
        same = np.array_equal(saved.get_weights()[0], self.model.get_weights()[0])
        LOOKED.append((mean, loss, same))
        print(f"looked at {mean:.4f} {loss:.4f} {same}", flush=True)


class Calling(keras.callbacks.Callback):
    """Calls the model itself, and another one with the same layers."""

    def on_epoch_end(self, epoch, logs=None):
        image = np.ones((1, 8, 8), "float32")
        expected = self.model.predict(image, verbose=0)
        np.testing.assert_allclose(self.model(image), expected, rtol=1e-5)
        other = keras.Model(self.model.inputs, self.model.layers[-1].output)
        np.testing.assert_allclose(other.predict(image, verbose=0), expected, rtol=1e-5)
        self.model.save_weights("called.weights.h5")


class Stopping(keras.callbacks.Callback):
    """Ends the training after a step of the second epoch."""

    def on_epoch_begin(self, epoch, logs=None):
        self.epoch = epoch

    def on_train_batch_end(self, batch, logs=None):
        self.model.stop_training = self.epoch == 1 and batch >= 6


class Saturating(keras.callbacks.Callback):
    """Gives the weights the same values at the end of each epoch."""

    def on_epoch_end(self, epoch, logs=None):
        self.model.set_weights([np.full(each.shape, 0.01) for each in self.model.get_weights()])


class Fitting(keras.callbacks.Callback):
    def on_epoch_end(self, epoch, logs=None):
        if epoch == 1:
            self.model.fit(np.zeros((2, 8, 8)), np.zeros(2), verbose=0)


class Every(keras.callbacks.CallbackList):
    """One of each of Keras's callbacks, which together end a training after three epochs."""

    def __init__(self):
        super().__init__(
            [
                keras.callbacks.Callback(),
                keras.callbacks.History(),
                keras.callbacks.LambdaCallback(on_epoch_end=self.see),
                keras.callbacks.CSVLogger("every.csv"),
                keras.callbacks.LearningRateScheduler(lambda epoch, rate: 0.9 * rate),
                keras.callbacks.ReduceLROnPlateau("loss", patience=1, min_delta=9, factor=0.5),
                keras.callbacks.SwapEMAWeights(swap_on_epoch=True),
                keras.callbacks.RemoteMonitor("http://127.0.0.1:9"),
                keras.callbacks.TerminateOnNaN(),
                keras.callbacks.ProgbarLogger(),
                keras.callbacks.ModelCheckpoint("every.keras"),
                keras.callbacks.BackupAndRestore("every"),
                keras.callbacks.TensorBoard("every"),
                keras.callbacks.EarlyStopping("loss", patience=2, min_delta=9),
            ]
        )

    def see(self, epoch, logs):
        LOOKED.append((epoch, dict(logs)))


CHANGING = ["SwapEMAWeights", "Clipping", "Annealing", "Resetting", "Stopping"]
ON_MESH = [*CHANGING, "Looking"]
ALL = [*ON_MESH, "Calling"]


def callbacks(hparams):
    return [
        getattr(keras.callbacks, name, globals().get(name))(**hparams.get("options", {}))
        for name in hparams["callbacks"]
    ]
