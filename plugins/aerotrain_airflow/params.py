"""The params of a training pipeline: the trigger form, and what the REST API accepts.

A pipeline takes them whole and gives its own defaults::

    @dag(params=training_params(epochs=12, threshold=0.95))
"""

from dataclasses import dataclass
from typing import Any

from airflow.sdk import Context, Param

from aerotrain.contract.errors import SpecError
from aerotrain.contract.strategy import STRATEGIES, nearest

_CLUSTER = "Cluster"
_TRAINING = "Training"
_DATA = "Data"
_GATE = "Gate"

#: Params that go to the user's ``build_model`` and mean nothing to the loop.
HPARAMS = ("learning_rate",)


@dataclass(frozen=True)
class RunParam:
    """The value of a param in the run, typed and checked; a template without Jinja.

    Airflow calls ``resolve`` on what it finds in an operator's template fields.
    """

    name: str

    def resolve(self, context: Context) -> Any:
        return context["params"][self.name]

    def __str__(self) -> str:
        return f"{{{{ params.{self.name} }}}}"


def training_params(**defaults: Any) -> dict[str, Param]:
    """Every param of a training pipeline, with the pipeline's own defaults.

    Raises:
        SpecError: a default is given for what is no param.
    """
    params = {
        "strategy": Param(
            "parameter_server",
            title="Strategy",
            description="; ".join(f"`{name}`: {r.summary}" for name, r in STRATEGIES.items()),
            description_md="\n".join(
                f"- `{name}`: {rules.summary}" for name, rules in STRATEGIES.items()
            ),
            type="string",
            enum=list(STRATEGIES),
            section=_CLUSTER,
        ),
        "workers": _count("Workers", "Replicas that compute. Empty: the strategy's own number."),
        "ps": _count("Parameter servers", "Replicas that hold the variables. Empty: the same."),
        "epochs": _whole(10, "Epochs", "Times that training reads the whole train split.", 1),
        "batch_size": _whole(32, "Batch size", "Records that one step reads.", 1),
        "learning_rate": Param(
            1e-3,
            title="Learning rate",
            description="The optimizer's step size, handed to build_model.",
            type="number",
            exclusiveMinimum=0,
            section=_TRAINING,
        ),
        "seed": _whole(0, "Seed", "Of the initial weights and the order of the records.", 0),
        "shards": _whole(
            4, "Shards", "Files of each split; each worker reads its own.", 1, section=_DATA
        ),
        "threshold": Param(
            0.9,
            title="Threshold",
            description="The least accuracy on the test split that is exported.",
            type="number",
            minimum=0,
            maximum=1,
            section=_GATE,
        ),
    }
    for name, value in defaults.items():
        if name not in params:
            raise SpecError(
                f"a training pipeline has no param {name!r}{nearest(name, params)}; "
                f"it has {', '.join(params)}"
            )
        params[name].value = value
    return params


def _count(title: str, description: str) -> Param:
    return Param(
        None,
        title=title,
        description=description,
        type=["null", "integer"],
        minimum=0,
        section=_CLUSTER,
    )


def _whole(
    value: int, title: str, description: str, minimum: int, *, section: str = _TRAINING
) -> Param:
    return Param(
        value,
        title=title,
        description=description,
        type="integer",
        minimum=minimum,
        section=section,
    )
