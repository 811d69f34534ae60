"""Compare two replicas that share batches with ``fit``, in a process of its own.

``python shared_steps.py "MODULE: NAME"…``: trains each model of that name in the table ``MODELS``
of the module as ``benchmarks.keras_table`` does: by ``fit`` on one device, and by two replicas of
``mirrored`` on two devices of this machine. The module's table ``OPTIONS`` holds another strategy,
or options, of models that need some.
"""

import importlib
import json
import sys
from dataclasses import dataclass
from typing import Any

import tensorflow as tf
from benchmarks import keras_table

from aerotrain.contract.training import TrainArguments
from aerotrain.training.strategies import ENGINES


@dataclass(frozen=True)
class Table(keras_table.Table):
    """A model with its own data."""

    data: Any = None


def main(*models: str) -> None:
    [cpu] = tf.config.list_physical_devices("CPU")
    two = [tf.config.LogicalDeviceConfiguration()] * 2
    tf.config.set_logical_device_configuration(cpu, two)
    arguments = TrainArguments(model="here", data="")
    built = {each: ENGINES[each].build(arguments) for each in ("mirrored", "one_device")}
    for model in models:
        module, _, name = model.partition(": ")
        given = importlib.import_module(f"support.{module}")
        table = Table("model", [], own=given.MODELS[name], data=given.DATA)
        try:
            fitted = keras_table.by_fit(table)
            options = {"strategy": "mirrored", **given.OPTIONS.get(name, {})}
            ours = keras_table.by_us(table, built[options["strategy"]], **options)
            assert sorted(ours.logs) == sorted(fitted.logs), f"{ours.logs}, by fit {fitted.logs}"
            distance = ours.distance(fitted, "")
            same = distance < keras_table.TOLERANCE
            said = "the same as fit" if same else f"{distance} from fit"
        except Exception as error:  # noqa: BLE001 -- what it is is the test's to show
            said = f"{type(error).__name__}: {error}"
        print(json.dumps({"model": model, "said": said[:2000]}), flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
