"""All callbacks of Keras, and what becomes of each."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import keras

from aerotrain.training.internals import keras3

EQUAL = "as under fit"


@dataclass(frozen=True, kw_only=True)
class CallbackKind:
    """What the loop knows of a kind of callback.

    ``instead`` is what does the same in this project, so that the callback is left out. ``state``
    are the attributes that determine its decisions. ``assigns`` is whether it may change a variable
    before training ends, and ``rate`` whether it sets the learning rate.
    """

    instead: str = ""
    state: tuple[str, ...] = ()
    assigns: bool = True
    rate: bool = False
    note: str = ""

    @property
    def outcome(self) -> str:
        """What becomes of the callback, for the table of the documentation."""
        said = f"left out: {self.instead}" if self.instead else EQUAL
        return f"{said}; {self.note}" if self.note else said


_CHECKPOINTS = "checkpoints are in the store; see checkpoint_interval, keep"
_SETTABLE = "refused if the learning rate is a schedule"

KINDS: Mapping[str, CallbackKind] = {
    "BackupAndRestore": CallbackKind(
        instead="a training resumes from its newest checkpoint by itself", assigns=False
    ),
    "CSVLogger": CallbackKind(assigns=False, note="its file is also in the store, under logs/"),
    "Callback": CallbackKind(note="an own callback; its variables reach all replicas"),
    "CallbackList": CallbackKind(note="taken apart"),
    "EarlyStopping": CallbackKind(
        state=("wait", "stopped_epoch", "best", "best_epoch"), assigns=False
    ),
    "History": CallbackKind(assigns=False, note="it starts over after a restart"),
    "LambdaCallback": CallbackKind(),
    "LearningRateScheduler": CallbackKind(rate=True, note=_SETTABLE),
    "ModelCheckpoint": CallbackKind(
        instead=_CHECKPOINTS, assigns=False, note="save_best_only becomes export_best"
    ),
    "OrbaxCheckpoint": CallbackKind(
        instead=_CHECKPOINTS, assigns=False, note="save_best_only becomes export_best"
    ),
    "ProgbarLogger": CallbackKind(instead="the log has the progress", assigns=False),
    "ReduceLROnPlateau": CallbackKind(
        state=("wait", "cooldown_counter", "best"), rate=True, note=_SETTABLE
    ),
    "RemoteMonitor": CallbackKind(assigns=False),
    "SwapEMAWeights": CallbackKind(state=(keras3.SWAPPED,), note="refused without use_ema"),
    "TensorBoard": CallbackKind(
        instead="the event files are in the store, under tensorboard/", assigns=False
    ),
    "TerminateOnNaN": CallbackKind(
        instead="a training ends at the first loss that is no finite number", assigns=False
    ),
}


def kind_of(callback: keras.callbacks.Callback) -> CallbackKind:
    """The row of the nearest class of Keras; what is not Keras's own may assign anything."""
    for each in type(callback).__mro__:
        if each.__module__.startswith("keras.") and each.__name__ in KINDS:
            return KINDS[each.__name__]
    return KINDS["Callback"]


def rows() -> Iterator[tuple[str, str, str]]:
    """Name, setting and outcome of each callback of Keras, for a table of the documentation."""
    for name, kind in KINDS.items():
        yield name, "all strategies", kind.outcome
