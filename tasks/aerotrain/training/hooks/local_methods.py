"""The methods of a trained model by which a callback computes, where a strategy has distributed it.

Keras's own need every process of the strategy, but only the chief calls callbacks.
"""

import inspect
import traceback
from collections.abc import Callable
from functools import cache, partial
from pathlib import Path
from typing import Any

import keras

from aerotrain.contract.errors import FinalError
from aerotrain.training.checkpoints.snapshot import random_state, restore_random_state
from aerotrain.training.context import TrainingContext
from aerotrain.training.model.callbacks import variables_of

#: Computed by a copy of the model with the current weights.
_BY_COPY = ("evaluate", "export", "predict", "predict_on_batch", "save", "test_on_batch")

#: What would train another model than the job's steps do.
_REFUSED = ("compile", "fit", "train_on_batch")


def compute_locally(context: TrainingContext) -> None:
    """Let the model compute in this process alone; what it cannot is a FinalError."""
    copy = cache(partial(_copy_of, context))
    for name in _BY_COPY:
        setattr(context.model, name, partial(_by_copy, context, copy, name))
    for name in _REFUSED:
        setattr(context.model, name, partial(_refuse, context.replica.job.strategy, name))


def copy_variables(trained: keras.Model, copy: keras.Model, *, optimizers: bool = False) -> None:
    """Give a copy of a model outside any strategy the values of the trained one."""
    values = variables_of(trained, optimizers=optimizers)
    for own, value in zip(variables_of(copy, optimizers=optimizers), values, strict=True):
        own.assign(value.numpy())


def _copy_of(context: TrainingContext) -> keras.Model:
    before = random_state()  # of which new weights would draw
    pipeline, arguments = context.pipeline, context.arguments
    model = pipeline.code.build(arguments.all_hparams, pipeline.spec, arguments.dtype_policy)
    restore_random_state(before)
    return model


def _by_copy(
    context: TrainingContext,
    copy: Callable[[], keras.Model],
    name: str,
    *arguments: Any,
    **options: Any,
) -> Any:
    copy_variables(context.model, copy(), optimizers=True)
    return getattr(copy(), name)(*arguments, **options)


def _refuse(strategy: str, name: str, *_arguments: Any, **_options: Any) -> None:
    raise FinalError(
        f"{_caller()} calls {name} of the model that is being trained, and under {strategy!r} "
        "several processes or devices train it by steps of their own; leave that call out, or call "
        "it on a model that the callback creates"
    )


def _caller() -> str:
    """The callback, and its line, that has called this."""
    for frame, line in traceback.walk_stack(inspect.currentframe()):
        owner = frame.f_locals.get("self")
        if isinstance(owner, keras.callbacks.Callback):
            if isinstance(owner, keras.callbacks.CallbackList):
                break
            file, name = Path(frame.f_code.co_filename).name, frame.f_code.co_name
            return f"{type(owner).__name__} (line {line} of {file}, in {name})"
    return "a callback"
