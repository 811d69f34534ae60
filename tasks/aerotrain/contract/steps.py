"""The arguments of each step, as Airflow hands them to a replica and a replica reads them."""

from collections.abc import Mapping
from dataclasses import MISSING, dataclass, field, fields
from typing import Any, Self

from aerotrain.contract.errors import SpecError
from aerotrain.contract.strategy import nearest


class Arguments:
    """What every step's arguments share: to be read from JSON, refusing what is not known."""

    @classmethod
    def of(cls, data: Mapping[str, Any]) -> Self:
        """Build and check the arguments.

        Raises:
            SpecError: a key is unknown or missing, or a value cannot be.
        """
        known = {each.name: each for each in fields(cls)}  # type: ignore[arg-type]
        for key in data:
            if key not in known:
                raise SpecError(
                    f"{cls.__name__} has no {key!r}{nearest(key, list(known))}; "
                    f"it has {', '.join(known)}"
                )
        missing = [
            name
            for name, each in known.items()
            if each.default is MISSING and each.default_factory is MISSING and name not in data
        ]
        if missing:
            raise SpecError(f"{cls.__name__} needs {', '.join(missing)}; got {', '.join(data)}")
        return cls(**data)


@dataclass(frozen=True, kw_only=True)
class PlanArguments(Arguments):
    """Plan a data set: which parts its source has, and into which shards they go.

    ``source`` names a kind of source and what that kind needs, such as
    ``{"kind": "python", "module": "digits"}``. ``splits`` gives each split its share of the
    records. ``shards`` is the least number of shards of every split; each replica that reads
    it needs one of its own.
    """

    source: Mapping[str, Any]
    splits: Mapping[str, float] = field(
        default_factory=lambda: {"train": 0.7, "validation": 0.1, "test": 0.2}
    )
    shards: int = 4

    def __post_init__(self) -> None:
        if "kind" not in self.source:
            raise SpecError("the source names no kind; add one, such as {'kind': 'python'}")
        if any(share <= 0 for share in self.splits.values()) or (
            abs(sum(self.splits.values()) - 1) > 1e-6
        ):
            raise SpecError(
                "the shares of the splits must be above zero and add up to 1, "
                f"got {dict(self.splits)}"
            )
        if self.shards < 1:
            raise SpecError(f"shards must be 1 or more, got {self.shards}")


@dataclass(frozen=True, kw_only=True)
class PartArguments(Arguments):
    """Write the shards of one part of a planned data set."""

    dataset: str
    part: int


@dataclass(frozen=True, kw_only=True)
class SealArguments(Arguments):
    """Seal a data set whose parts are all written."""

    dataset: str


@dataclass(frozen=True, kw_only=True)
class TrainArguments(Arguments):
    """Train the model that the user's module ``model`` builds, on the data set ``data``.

    ``batch_size`` is the global batch, over all workers. ``hparams`` goes to the user's
    ``build_model``, together with epochs, batch_size and seed. ``checkpoint_seconds`` is
    the time between two checkpoints; ``keep`` is how many of them stay in the store.
    """

    model: str
    data: str
    epochs: int = 10
    batch_size: int = 32
    seed: int = 0
    steps_per_execution: int = 50
    checkpoint_seconds: float = 60.0
    keep: int = 3
    hparams: Mapping[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        for name in ("epochs", "batch_size", "steps_per_execution", "keep"):
            value = getattr(self, name)
            if not isinstance(value, int) or isinstance(value, bool) or value < 1:
                raise SpecError(f"{name} must be a whole number of 1 or more, got {value!r}")
        if self.checkpoint_seconds <= 0:
            raise SpecError(f"checkpoint_seconds must be above zero, got {self.checkpoint_seconds}")

    @property
    def all_hparams(self) -> dict[str, Any]:
        """What ``build_model`` receives; the user's own values win."""
        return {
            "epochs": self.epochs,
            "batch_size": self.batch_size,
            "seed": self.seed,
            **self.hparams,
        }


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
