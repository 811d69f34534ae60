"""The arguments of a training: every option with its title, help text and bounds."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Any, ClassVar, Self

from aerotrain.contract.errors import SpecError
from aerotrain.contract.options import Section, option
from aerotrain.contract.validation import Count, Limits, Validated

#: Keras dtype policies that a training may use.
DTYPE_POLICIES = ("float32", "mixed_bfloat16", "mixed_float16")

#: The usual steps of an execution.
STEPS_PER_EXECUTION = 50

#: How workers all-reduce: TensorFlow's choice, a ring over gRPC, or NVIDIA's library.
STRAGGLERS = ("report", "replace")
UPDATES = ("asynchronous", "synchronous")
COMMUNICATIONS = ("auto", "ring", "nccl")

#: The dtype in which replicas exchange gradients; each replica adds them up in its own dtype.
GRADIENT_DTYPES = ("float32", "bfloat16", "float16")

#: The axes of every mesh: batches are divided along the first, variables along either.
BATCH_AXIS, MODEL_AXIS = MESH_AXES = ("batch", "model")

_Axis = Annotated[str, Limits(choices=MESH_AXES)]
_Weight = Annotated[float, Limits(minimum=0)]


@dataclass(frozen=True, kw_only=True)
class TrainArguments(Validated):
    """Train the model that the user's module ``model`` builds, on the data set ``data``.

    All other fields are options; their help texts describe them. ``from_dict`` also takes a list of
    ``hparams``, of which the later take precedence.
    """

    TITLE: ClassVar = "train"

    model: str
    data: str

    hparams: Mapping[str, Any] = option(
        {},
        title="Hyperparameters",
        help='Values for build_model and callbacks, as {"units": 64}. The first task rejects a key '
        "that they do not read. They also get epochs, batch_size, seed, and learning_rate if set.",
        section=Section.TRAINING,
    )
    epochs: int = option(
        10,
        title="Epochs",
        help="Number of times that training reads the whole train split.",
        section=Section.TRAINING,
        minimum=1,
    )
    batch_size: int = option(
        32,
        title="Batch size",
        help="Records of one training step, over all workers.",
        section=Section.TRAINING,
        minimum=1,
    )
    learning_rate: float | None = option(
        None,
        title="Learning rate",
        help="Passed to build_model in hparams, which must read it.",
        empty="that of build_model",
        section=Section.TRAINING,
        above=0,
    )
    seed: int = option(
        0,
        title="Random seed",
        help="Seed of the initial weights and of the order of the records.",
        section=Section.TRAINING,
        minimum=0,
    )
    deterministic: bool = option(
        False,
        title="Same result in each run",
        help="Compute the same bits in each run, at some cost in time. Not available under "
        "parameter_server, nor with data workers.",
        section=Section.RARE,
    )
    validate: bool | None = option(
        None,
        title="Validate after each epoch",
        help="Measure the validation split at the end of each epoch. With true, as with callbacks "
        "that monitor a val_ metric, each epoch that is the best so far also has a checkpoint.",
        empty="yes, without such checkpoints, if the split has records that the chief can measure "
        "alone, and there is no evaluator",
        section=Section.TRAINING,
    )
    export_best: str | None = option(
        None,
        title="Keep the best epoch by metric",
        help="Metric whose best epoch gives the weights of the model, as val_loss; min:NAME or "
        "max:NAME where Keras does not know which is better.",
        empty="the weights of the last epoch",
        section=Section.TRAINING,
    )
    start_from: str | None = option(
        None,
        title="Start from a model",
        help="Model from which the variables of equal path and shape get their first values: "
        "serving, the version that this pipeline serves; the URL of a trained model, of "
        "an exported version or of a checkpoint; or the id of a run of this DAG.",
        empty="random values",
        section=Section.TRAINING,
        pattern=".+",
        form="serving, a URL, or the id of a run",
        in_form=False,
    )
    class_weight: Mapping[str, _Weight] = option(
        {},
        title="Class weights",
        help="Weight of the examples of a class in the loss, by class number; 1 where a class is "
        'not named. Example: {"3": 2.5}.',
        section=Section.TRAINING,
        in_form=False,
    )
    drop_remainder: bool = option(
        False,
        title="Drop the remainder",
        help="Leave out the records of an epoch, and of a validation, that fill no batch, for a "
        "model that takes batches of one size, such as a stateful recurrent one.",
        section=Section.RARE,
    )
    synchronized_batch_norm: bool = option(
        False,
        title="Synchronized batch normalization",
        help="Let each BatchNormalization use the statistics of the whole batch, as on one device, "
        "instead of those of a replica's part of it. Not available with jit_compile.",
        section=Section.RARE,
    )
    mesh: Mapping[str, Count] = option(
        {},
        title="mesh",
        help='Number of devices along each axis, over all processes, as {"batch": 1, "model": 2}.',
        empty="all devices along model where there is a layout, else along batch",
        strategy="dtensor",
        section=Section.RARE,
        keys=MESH_AXES,
    )
    layout: Mapping[str, Sequence[_Axis | None]] = option(
        {},
        title="layout",
        help="Patterns of variables' paths, each with an axis or null for each dimension, as "
        '{"dense/kernel": [null, "model"]}. Other variables are replicated.',
        strategy="dtensor",
        section=Section.RARE,
    )
    tpu: str = option(
        "local",
        title="name or address",
        help="Name of the TPU, or its address as grpc://host:port. The DAG file sets it: a run "
        "cannot change it.",
        strategy="tpu",
        section=Section.RARE,
        pattern=r"[\w.-]+|grpc://([\w.-]+|\[[\da-fA-F:]+\])(:\d+)?(,grpc://[\w.-]+:\d+)*",
        form="the name of a TPU, or grpc://host:port",
        fixed=True,
    )
    shard_cache_bytes: int = option(
        0,
        title="Disk space for shards (bytes)",
        help="Disk space of each replica for shards of the data set, at least the size of the "
        "largest shard. Shards are downloaded while training reads. 0: keep all shards.",
        section=Section.RARE,
        minimum=0,
    )
    steps_per_execution: int | None = option(
        None,
        title="Steps per execution",
        help="Training steps in one call of a compiled function. Progress is reported, callbacks "
        "by batch are called, and checkpoints are saved between two calls.",
        empty=f"at most {STEPS_PER_EXECUTION}, which take about 2 s, or 1 for a callback of the "
        "user's own by batch",
        section=Section.PERFORMANCE,
        minimum=1,
    )
    dtype_policy: str = option(
        DTYPE_POLICIES[0],
        title="Precision of layers",
        help="Keras dtype policy of the layers; weights are float32 under all of them. On a CPU, "
        "mixed_float16 takes about 10 times as long as mixed_bfloat16.",
        section=Section.PERFORMANCE,
        choices=DTYPE_POLICIES,
    )
    jit_compile: bool = option(
        False,
        title="XLA compilation",
        help="Compile the computation of each replica with XLA.",
        section=Section.PERFORMANCE,
    )
    gradient_accumulation_steps: int = option(
        1,
        title="Microbatches per step",
        help="Number of microbatches into which each replica divides its part of a batch. "
        "Gradients are exchanged once for all of them.",
        section=Section.PERFORMANCE,
        minimum=1,
    )
    communication: str = option(
        COMMUNICATIONS[0],
        title="all-reduce",
        help="How workers add up gradients: TensorFlow's choice, a ring over gRPC, or NCCL.",
        strategy="multi_worker_mirrored",
        section=Section.RARE,
        choices=COMMUNICATIONS,
    )
    update: str = option(
        UPDATES[0],
        title="Updates",
        help="- **asynchronous**: each worker updates the variables with its own batches.\n"
        "- **synchronous**: workers compute parts of one batch, whose sum updates the variables, "
        "as one device would.",
        strategy="parameter_server",
        section=Section.TRAINING,
        choices=UPDATES,
    )
    stragglers: str = option(
        STRAGGLERS[0],
        title="Slow replicas",
        help="What happens to a replica whose steps take much longer than those of the others: it "
        "is named in the log, or another process takes its place, on another node if possible.",
        section=Section.RECOVERY,
        choices=STRAGGLERS,
    )
    replicas_to_aggregate: int | None = option(
        None,
        title="Gradients in an update",
        help="Number of parts of a batch under synchronous updates. With more workers than parts, "
        "the others are backups: of a part, the gradient that is there first counts.",
        empty="as many as workers",
        strategy="parameter_server",
        section=Section.RARE,
        minimum=1,
    )
    gradient_dtype: str = option(
        GRADIENT_DTYPES[0],
        title="Gradient precision",
        help="Dtype in which synchronous strategies send gradients. 16 bits halve the traffic.",
        section=Section.PERFORMANCE,
        choices=GRADIENT_DTYPES,
    )
    checkpoint_interval: float = option(
        60.0,
        title="Checkpoint interval (seconds)",
        help="Time between two checkpoints: the most that a failure loses.",
        section=Section.RECOVERY,
        above=0,
    )
    keep: int = option(
        3,
        title="Checkpoints to keep",
        help="Newest checkpoints that stay in the store. The one of the best validation loss "
        "stays, too.",
        section=Section.RECOVERY,
        minimum=1,
        in_form=False,
    )
    store_timeout: float = option(
        3600.0,
        title="Store timeout (seconds)",
        help="How long the store may be unavailable before the training fails.",
        section=Section.RECOVERY,
        above=0,
    )

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> Self:
        if any("partition" in key for key in data):
            raise SpecError(
                "strategy 'parameter_server' cannot partition Keras layers' variables; use "
                "aerotrain.layers.ShardedEmbedding for the large table"
            )
        several = data.get("hparams")
        if isinstance(several, list) and all(isinstance(each, Mapping) for each in several):
            data = {**data, "hparams": {key: each[key] for each in several for key in each}}
        return super().from_dict(data)

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.replicas_to_aggregate and not self.is_synchronous:
            raise SpecError(
                f"replicas_to_aggregate is {self.replicas_to_aggregate}, and update is "
                f"{self.update!r}, under which each gradient is an update; set update to "
                "'synchronous', or leave it out"
            )
        if self.synchronized_batch_norm and self.jit_compile:
            raise SpecError(
                "synchronized_batch_norm exchanges statistics within a step, which XLA cannot "
                "compile; leave it or jit_compile out"
            )
        for each in self.class_weight:
            if not str(each).isdecimal():
                raise SpecError(f"class_weight has no class {each!r}; give its number, as '3'")
        for pattern in self.layout:
            try:
                re.compile(pattern)
            except re.error as error:
                raise SpecError(
                    f"the layout {pattern!r} is no regular expression: {error}"
                ) from error

    @property
    def is_synchronous(self) -> bool:
        """Whether workers of parameter servers compute parts of one batch."""
        return self.update == UPDATES[1]

    def parts(self, workers: int) -> int:
        """The number of parts of a batch that so many workers compute under synchronous updates."""
        return (self.replicas_to_aggregate or workers) * self.gradient_accumulation_steps

    @property
    def steps_of_execution(self) -> int:
        """The most steps in one call of a compiled function."""
        return self.steps_per_execution or STEPS_PER_EXECUTION

    @property
    def all_hparams(self) -> dict[str, Any]:
        """The hyperparameters that ``build_model`` receives; the user's own take precedence."""
        names = ("epochs", "batch_size", "seed")
        return {**{name: getattr(self, name) for name in names}, **self.given_hparams}

    @property
    def given_hparams(self) -> dict[str, Any]:
        """Those of them that ``build_model`` or the callbacks must read."""
        rate = {} if self.learning_rate is None else {"learning_rate": self.learning_rate}
        return {**rate, **self.hparams}
