"""What an exported version was made of, by the manifests of the version, its model and its data."""

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from aerotrain.contract.errors import FinalError
from aerotrain.contract.layout import PLAN
from aerotrain.data.prepare.plan import DatasetPlan
from aerotrain.store import MANIFEST, Manifest, MissingError, open_store
from aerotrain.training.model_manifest import ModelManifest

#: The options that ``build_model`` gets among its hparams.
_OPTIONS = ("epochs", "batch_size", "seed")


@dataclass(frozen=True, kw_only=True)
class Origin:
    """The URL of a version, and what it was made of.

    ``about`` is what its manifest says, ``trained`` the manifest of its model. ``plan`` is that of
    its data set, None if it is gone.
    """

    version: str
    about: Mapping[str, Any]
    trained: ModelManifest
    plan: DatasetPlan | None

    @classmethod
    def of(cls, version: str) -> "Origin":
        """The origin of the version at that URL.

        Raises:
            FinalError: there is no complete version, or its model is gone.
        """
        url = version.rstrip("/")
        try:
            about = Manifest.from_json(open_store(url).get(MANIFEST)).about
        except MissingError as error:
            raise FinalError(
                f"there is no complete version at {url}; give the URL of one, or its number and "
                "--store"
            ) from error
        try:
            trained = ModelManifest.load(about["model"])
        except MissingError as error:
            raise FinalError(
                f"{url} was made of the model {about['model']}, which is gone, and with it what is "
                "known of its training"
            ) from error
        store = open_store(trained.data)
        plan = DatasetPlan.read(store) if store.exists(PLAN) else None
        return cls(version=url, about=about, trained=trained, plan=plan)

    @property
    def arguments(self) -> dict[str, Any]:
        """The arguments of the training, with the starting point as it was resolved."""
        trained = self.trained
        known = dict(trained.recipe["arguments"])
        if trained.started_from:
            known["start_from"] = trained.started_from["model"]
        return known

    def to_dict(self) -> dict[str, Any]:
        """All that the version was made of, as JSON."""
        trained, plan = self.trained, self.plan
        return {
            "version": self.version,
            "export": dict(self.about),
            "training": {
                "model": self.about["model"],
                "step": trained.step,
                "checkpoint": trained.checkpoint,
                "strategy": trained.strategy,
                "replicas": {each["role"]: each["count"] for each in trained.recipe["replicas"]},
                "options": self.arguments,
                "hparams": dict(trained.hparams),
                "started_from": trained.started_from and dict(trained.started_from),
            },
            "code": {
                "address": trained.code,
                "modules": trained.recipe["modules"],
            },
            "environment": dict(trained.environment),
            "data": {"url": trained.data} if plan is None else _data(trained.data, plan),
        }


def _data(url: str, plan: DatasetPlan) -> dict[str, Any]:
    options = json.loads(plan.to_json())["rules"]
    source = options.pop("source")
    return {
        "url": url,
        "source": source,
        "options": options,
        "partitions": len(plan.partitions),
        "fingerprint": plan.fingerprint,
    }


def lines(document: Mapping[str, Any], indent: str = "") -> Iterator[str]:
    """A document for people: a line for each value, indented by its place."""
    for name, value in document.items():
        if isinstance(value, Mapping) and value:
            yield f"{indent}{name}:"
            yield from lines(value, f"{indent}  ")
        else:
            shown = value if isinstance(value, str) else json.dumps(value)
            yield f"{indent}{name}: {shown}"
