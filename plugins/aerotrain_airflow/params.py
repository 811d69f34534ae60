"""The params of a training pipeline: the trigger form, and what the REST API accepts.

A pipeline takes them whole and gives its own defaults::

    @dag(params=training_params(epochs=12, threshold=0.95))
"""

from dataclasses import fields
from typing import Any

from airflow.sdk import Param

from aerotrain.contract.errors import SpecError
from aerotrain.contract.job import Role
from aerotrain.contract.limits import Deadlines, Restarts
from aerotrain.contract.steps import COMMUNICATIONS, GRADIENT_DTYPES, PRECISIONS
from aerotrain.contract.strategy import STRATEGIES, nearest
from aerotrain_airflow.form import (
    CLUSTER,
    DATA,
    GATE,
    LAUNCHER,
    RECOVERY,
    SPEED,
    TRAINING,
    choice,
    count,
    mapping,
    positive,
    switch,
    whole,
)
from aerotrain_airflow.settings import LAUNCHERS

#: Params that go to the training loop under their own names.
LOOP = (
    "epochs",
    "batch_size",
    "seed",
    "deterministic",
    "validate",
    "store_seconds",
    "steps_per_execution",
    "precision",
    "jit_compile",
    "accumulate_steps",
    "communication",
    "gradient_dtype",
    "bytes_per_pack",
    "mesh",
    "layout",
    "tpu",
    "disk_bytes",
)

#: Params that go to the user's ``build_model`` and mean nothing to the loop.
HPARAMS = ("learning_rate",)


def training_params(**defaults: Any) -> dict[str, Param]:
    """Every param of a training pipeline, with the pipeline's own defaults.

    Raises:
        SpecError: a default is given for what is no param.
    """
    params = _cluster() | _where() | _training() | _speed() | _recovery() | _data_and_gate()
    for name, value in defaults.items():
        if name not in params:
            raise SpecError(
                f"a training pipeline has no param {name!r}{nearest(name, params)}; "
                f"it has {', '.join(params)}"
            )
        params[name].value = value
    return params


def _cluster() -> dict[str, Param]:
    """Which replicas train together, and how."""
    return {
        "strategy": Param(
            "parameter_server",
            title="Strategy",
            description_md="\n".join(
                f"- **{name}**: {rules.summary}" for name, rules in STRATEGIES.items()
            ),
            type="string",
            enum=list(STRATEGIES),
            section=CLUSTER,
        ),
        "workers": count("Workers", "Replicas that compute. Empty: the strategy's own number."),
        "ps": count("Parameter servers", "Replicas that hold variables. Empty: the strategy's."),
        "evaluator": switch(
            "Evaluator",
            "A replica beside the others that measures each checkpoint on the validation split "
            "while training goes on.",
            CLUSTER,
        ),
        "mesh": mapping(
            "Mesh",
            'Of dtensor: devices along each axis, over all processes, as {"batch": 1, "model": '
            "2}. Empty: all that there are.",
        ),
        "layout": mapping(
            "Layout",
            "Of dtensor: patterns of variables' paths, each with an axis or null for each "
            'dimension, as {"dense/kernel": [null, "model"]}. What none names is not cut.',
        ),
        "tpu": Param(
            "local",
            title="TPU",
            description="Of tpu: its name, or its address as grpc://host:port.",
            type="string",
            section=CLUSTER,
        ),
    }


def _where() -> dict[str, Param]:
    """What runs the replicas, and how much of it they get."""
    return {
        "resources": Param(
            {},
            title="Resources",
            description="Of each role's replicas as pods, as "
            '{"worker": {"cpu": 4, "memory": "8Gi", "gpu": 1}}. Empty: 0.25 cores and 1536Mi.',
            type="object",
            propertyNames={"enum": list(Role)},
            section=LAUNCHER,
        ),
        "launcher": Param(
            None,
            title="Launcher",
            description="What replicas are: local processes, or pods. Empty: as this Airflow "
            "is set.",
            type=["null", "string"],
            enum=[None, *LAUNCHERS],
            section=LAUNCHER,
        ),
        "dry_run": switch(
            "Dry run",
            "Show in the log of the first task what would be started, and start nothing.",
            LAUNCHER,
        ),
    }


def _training() -> dict[str, Param]:
    """What decides the course of a training, and what it leaves on its way."""
    return {
        "epochs": whole(10, "Epochs", "Times that training reads the whole train split.", 1),
        "batch_size": whole(32, "Batch size", "Records that one step reads.", 1),
        "learning_rate": positive(
            1e-3, "Learning rate", "The optimizer's step size, handed to build_model."
        ),
        "seed": whole(0, "Seed", "Of the initial weights and the order of the records.", 0),
        "deterministic": switch(
            "Deterministic",
            "The same bits in each run, at some cost in time. Not under parameter_server, nor with "
            "input.",
            TRAINING,
        ),
        "validate": switch(
            "Validate", "Measure the validation split at the end of each epoch.", TRAINING
        ),
    }


def _recovery() -> dict[str, Param]:
    """What a failure may cost, and what is recovered from; docs/recovery.md has the rules."""
    return {
        "checkpoint_seconds": Param(
            60,
            title="Seconds between checkpoints",
            description="What a failure may cost at most. Empty: the interval that costs least, "
            "from what saving is seen to cost and how often this training failed.",
            type=["null", "number"],
            exclusiveMinimum=0,
            section=RECOVERY,
        ),
        "patience": positive(
            Deadlines().patience,
            "Patience",
            "Seconds without progress after which a replica counts as frozen.",
            section=RECOVERY,
        ),
        "restarts": Param(
            {},
            title="Restarts",
            description="How often each replica comes back in place, by the kind of its loss, as "
            '{"crashes": 1, "hangs": 0}. Empty: '
            + ", ".join(f"{each.default} {each.name}" for each in fields(Restarts))
            + ".",
            type="object",
            propertyNames={"enum": [each.name for each in fields(Restarts)]},
            section=RECOVERY,
        ),
        "min_workers": count(
            "Least workers",
            "With how few a next try of the task may go on, where pods of others found no place. "
            "Empty: with all of them.",
            section=RECOVERY,
        ),
        "store_seconds": positive(
            3600,
            "Seconds without the store",
            "For how long the store may be away before the training fails.",
            section=RECOVERY,
        ),
    }


def _speed() -> dict[str, Param]:
    """What changes the pace of a training and not its course; docs/strategies.md has figures."""
    return {
        "steps_per_execution": whole(
            50,
            "Steps per execution",
            "Steps that run in one call, and report and checkpoint after it.",
            1,
            section=SPEED,
        ),
        "precision": choice(
            "Precision",
            "What layers compute in; weights are float32 under all of them. On a CPU, "
            "mixed_float16 takes about 10 times as long as mixed_bfloat16.",
            PRECISIONS,
        ),
        "jit_compile": switch(
            "Compile", "Have XLA compile what each replica computes by itself.", SPEED
        ),
        "accumulate_steps": whole(
            1,
            "Accumulate steps",
            "Pieces that a replica cuts its batch into, to exchange gradients once for all.",
            1,
            section=SPEED,
        ),
        "communication": choice(
            "Communication", "Of multi_worker_mirrored: who moves gradients.", COMMUNICATIONS
        ),
        "gradient_dtype": choice(
            "Gradients in", "16 bits halve the bytes that sync strategies move.", GRADIENT_DTYPES
        ),
        "bytes_per_pack": whole(
            0,
            "Bytes per pack",
            "Bytes of gradients that travel at once. 0 leaves it to TensorFlow.",
            0,
            section=SPEED,
        ),
    }


def _data_and_gate() -> dict[str, Param]:
    return {
        "shards": whole(
            4,
            "Shards",
            "Files of each split; each worker, or each input, reads its own.",
            1,
            section=DATA,
        ),
        "disk_bytes": whole(
            0,
            "Disk bytes",
            "Bytes of its disk that each replica's shards may take while it reads them, at least "
            "those of one shard; they come from the store as they are needed. 0: all at once.",
            0,
            section=DATA,
        ),
        "input": count(
            "Input",
            "Replicas that read, parse and transform records for the others, by TensorFlow's "
            "tf.data service, where that is the bottleneck. Not under dtensor. Empty: none; each "
            "replica reads for itself.",
            section=DATA,
        ),
        "accept_data": switch(
            "Accept data",
            "Take data that are not like those of the last run, and compare later ones with them.",
            DATA,
        ),
        "threshold": Param(
            0.9,
            title="Threshold",
            description="The least accuracy on the test split that is exported.",
            type="number",
            minimum=0,
            maximum=1,
            section=GATE,
        ),
    }
