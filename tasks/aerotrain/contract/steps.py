"""The arguments of each step, as Airflow hands them to a replica and a replica reads them."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Self

from aerotrain.contract.arguments import Arguments
from aerotrain.contract.errors import SpecError
from aerotrain.contract.preparing import PartArguments, PlanArguments, SealArguments
from aerotrain.contract.strategy import nearest

#: What layers compute in, as Keras names it; their weights are float32 under all of them.
PRECISIONS = ("float32", "mixed_bfloat16", "mixed_float16")


#: How workers all-reduce: TensorFlow's choice, a ring over gRPC, or NVIDIA's library.
COMMUNICATIONS = ("auto", "ring", "nccl")

#: What gradients travel in between replicas; each replica adds them up in its own dtype.
GRADIENT_DTYPES = ("float32", "bfloat16", "float16")


#: The interval between checkpoints that is set from what they cost and how often they are needed.
AUTO = "auto"

#: The axes of every mesh: batches are cut along the first, variables along either.
BATCH_AXIS, MODEL_AXIS = MESH_AXES = ("batch", "model")


@dataclass(frozen=True, kw_only=True)
class TrainArguments(Arguments):
    """Train the model that the user's module ``model`` builds, on the data set ``data``.

    ``batch_size`` is the global batch, over all workers. ``hparams`` goes to the user's
    ``build_model``, together with epochs, batch_size and seed. ``checkpoint_seconds`` is
    the time between two checkpoints, or "auto" for the one that costs least; ``keep`` is how
    many of them stay in the store, beside the one of the best validation loss.
    ``store_seconds`` is for how long the store may be away before the training fails.
    How replicas exchange gradients: ``communication`` is one of ``COMMUNICATIONS``,
    ``gradient_dtype`` of ``GRADIENT_DTYPES``, ``bytes_per_pack`` the bytes that travel at once
    (0 leaves it to TensorFlow). ``jit_compile`` has XLA compile what a replica computes by
    itself. ``accumulate_steps`` is into how many pieces a replica cuts its part of a batch,
    to compute one after another and exchange their sum.
    ``precision`` is one of ``PRECISIONS``. ``validate`` measures the validation split at each
    epoch's end, which is done anyway where a callback asks for it. ``class_weight`` gives
    examples of a class, a whole number as text, more or less weight than 1. ``disk_bytes`` is
    how many bytes of a replica's disk shards may take while it reads them; 0 is for all.
    The order of records is the seed's in any case; ``deterministic`` has what is computed of
    them, and the random numbers of a transform, be the same in each run too, to the last bit.
    For ``dtensor`` alone: ``mesh`` gives each of ``MESH_AXES`` its number of devices, over all
    processes; empty, all devices are along ``model`` where there is a layout, else ``batch``.
    ``layout`` maps patterns of variables' paths to an axis or None for each dimension. For
    ``tpu`` alone: ``tpu`` is the TPU's name or address, which must answer in ``tpu_seconds``.
    """

    model: str
    data: str
    epochs: int = 10
    batch_size: int = 32
    seed: int = 0
    steps_per_execution: int = 50
    checkpoint_seconds: float | str = 60.0
    store_seconds: float = 3600.0
    keep: int = 3
    communication: str = COMMUNICATIONS[0]
    gradient_dtype: str = GRADIENT_DTYPES[0]
    bytes_per_pack: int = 0
    jit_compile: bool = False
    accumulate_steps: int = 1
    precision: str = PRECISIONS[0]
    validate: bool = False
    class_weight: Mapping[str, float] = field(default_factory=dict)
    hparams: Mapping[str, Any] = field(default_factory=dict)
    mesh: Mapping[str, int] = field(default_factory=dict)
    layout: Mapping[str, Sequence[str | None]] = field(default_factory=dict)
    disk_bytes: int = 0
    deterministic: bool = False
    tpu: str = "local"
    tpu_seconds: float = 15.0

    @classmethod
    def of(cls, data: Mapping[str, Any]) -> Self:
        if any("partition" in key for key in data):
            raise SpecError(
                "strategy 'parameter_server' cannot partition Keras layers' variables; use "
                "aerotrain.layers.ShardedEmbedding for the large table"
            )
        return super().of(data)

    def __post_init__(self) -> None:
        _check_mesh(self.mesh, self.layout)
        if not self.tpu_seconds > 0:
            raise SpecError(f"tpu_seconds must be above zero, got {self.tpu_seconds}")
        for name in (
            "epochs",
            "batch_size",
            "steps_per_execution",
            "keep",
            "accumulate_steps",
        ):
            value = getattr(self, name)
            if not isinstance(value, int) or isinstance(value, bool) or value < 1:
                raise SpecError(f"{name} must be a whole number of 1 or more, got {value!r}")
        _check_seconds(self.checkpoint_seconds, self.store_seconds)
        for name in ("bytes_per_pack", "disk_bytes"):
            value = getattr(self, name)
            if not isinstance(value, int) or isinstance(value, bool) or value < 0:
                raise SpecError(f"{name} must be a whole number of 0 or more, got {value!r}")
        for name, known in (
            ("communication", COMMUNICATIONS),
            ("gradient_dtype", GRADIENT_DTYPES),
            ("precision", PRECISIONS),
        ):
            value = getattr(self, name)
            if value not in known:
                raise SpecError(
                    f"there is no {name} {value!r}{nearest(str(value), list(known))}; "
                    f"use one of {', '.join(known)}"
                )
        for each, weight in self.class_weight.items():
            if not str(each).isdecimal() or not weight >= 0:
                raise SpecError(
                    f"class_weight[{each!r}] is {weight!r}; give a class, which is a whole "
                    "number, a weight of 0 or more"
                )

    @property
    def all_hparams(self) -> dict[str, Any]:
        """What ``build_model`` receives; the user's own values win."""
        return {
            "epochs": self.epochs,
            "batch_size": self.batch_size,
            "seed": self.seed,
            **self.hparams,
        }


def _check_seconds(checkpoint: object, store: object) -> None:
    if checkpoint != AUTO and not (_is_number(checkpoint) and checkpoint > 0):  # type: ignore[operator]
        raise SpecError(
            f"checkpoint_seconds must be a number above zero or {AUTO!r}, got {checkpoint!r}"
        )
    if not (_is_number(store) and store > 0):  # type: ignore[operator]
        raise SpecError(f"store_seconds must be a number above zero, got {store!r}")


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _check_mesh(mesh: Mapping[str, int], layout: Mapping[str, Sequence[str | None]]) -> None:
    for axis, size in mesh.items():
        _check_axis("the mesh", axis)
        if not isinstance(size, int) or isinstance(size, bool) or size < 1:
            raise SpecError(
                f"the size of the mesh's axis {axis!r} must be a whole number of 1 or more, "
                f"got {size!r}"
            )
    for pattern, axes in layout.items():
        try:
            re.compile(pattern)
        except re.error as error:
            raise SpecError(f"the layout {pattern!r} is no regular expression: {error}") from error
        if isinstance(axes, str) or not isinstance(axes, Sequence):
            raise SpecError(
                f"the layout {pattern!r} is {axes!r}; give a list of an axis or null for each "
                "dimension, such as [null, 'model']"
            )
        for axis in filter(None, axes):
            _check_axis(f"the layout {pattern!r}", axis)


def _check_axis(where: str, axis: str) -> None:
    if axis not in MESH_AXES:
        raise SpecError(
            f"{where} names an axis {axis!r}{nearest(str(axis), list(MESH_AXES))}; the axes are "
            f"{', '.join(MESH_AXES)}"
        )


@dataclass(frozen=True, kw_only=True)
class EvaluateArguments(Arguments):
    """Evaluate the model at the URL ``model`` on one split of the data set ``data``.

    ``thresholds`` gives metrics by name the least value that passes.
    """

    model: str
    data: str
    split: str = "test"
    batch_size: int = 256
    thresholds: Mapping[str, float] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True)
class ExportArguments(Arguments):
    """Export the model at the URL ``model``, checked on records of the data set ``data``."""

    model: str
    data: str
    split: str = "test"
    records: int = 64


#: The arguments of every module of ours that a job may name.
ARGUMENTS: Mapping[str, type[Arguments]] = {
    "aerotrain.prepare.plan": PlanArguments,
    "aerotrain.prepare.part": PartArguments,
    "aerotrain.prepare.seal": SealArguments,
    "aerotrain.train": TrainArguments,
    "aerotrain.evaluate": EvaluateArguments,
    "aerotrain.export": ExportArguments,
}
