"""What an exported version was made of, by its manifests, and what of that has changed."""

import json
import sys
import tempfile
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from aerotrain.contract.errors import AerotrainError, FinalError
from aerotrain.contract.layout import PLAN
from aerotrain.contract.preparing import PlanArguments
from aerotrain.contract.strategy import STRATEGIES
from aerotrain.data.prepare.plan import DatasetPlan, make_plan
from aerotrain.store import MANIFEST, Manifest, MissingError, open_store
from aerotrain.training.model_manifest import ModelManifest, packages
from aerotrain.user_code import changed_files, fetch_code


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


# --- what has changed since


def changes(origin: Origin) -> list[str]:
    """What is not there any more, or is another one, a sentence each; empty if nothing changed."""
    return [
        *_of_source(origin),
        *_of_code(origin.trained),
        *_of_starting_point(origin.trained),
        *_of_environment(origin.trained),
        *why_different(
            origin.trained.strategy, deterministic=bool(origin.arguments.get("deterministic"))
        ),
    ]


def _of_source(origin: Origin) -> Iterator[str]:
    if not open_store(origin.trained.data).exists(MANIFEST):
        yield f"the data set {origin.trained.data} is gone"
    if origin.plan is None:
        return
    try:
        now = _planned_now(origin.plan.rules, origin.trained.code)
    except Exception as error:  # noqa: BLE001 -- a source of the user's own raises anything
        yield f"the source cannot be listed here, so it is not compared: {error}"
        return
    if now.fingerprint != origin.plan.fingerprint:
        yield _difference(origin.plan, now)


def _difference(was: DatasetPlan, now: DatasetPlan) -> str:
    same, count = len(set(was.partitions) & set(now.partitions)), len(was.partitions)
    more = f", and it has {len(now.partitions)} now" if len(now.partitions) != count else ""
    columns = "; its columns are other ones" if was.schema != now.schema else ""
    return (
        f"the source has changed: {same} of its {count} partitions are as they were{more}"
        f"{columns}; its fingerprint was {was.fingerprint} and is {now.fingerprint}"
    )


def _planned_now(rules: PlanArguments, code: str | None) -> DatasetPlan:
    """The plan of the source as it is now, which may be a module of the user's."""
    with tempfile.TemporaryDirectory() as folder:
        if code is not None:
            sys.path.insert(0, str(fetch_code(code, Path(folder))) if "://" in code else code)
        return make_plan(rules)[0]


def _of_code(trained: ModelManifest) -> Iterator[str]:
    was = trained.recipe["modules"]
    if trained.code is None:
        return
    if "://" in trained.code:
        with tempfile.TemporaryDirectory() as folder:
            try:
                fetch_code(trained.code, Path(folder))
            except AerotrainError as error:
                yield f"the code archive cannot be used: {error}"
    elif not Path(trained.code).is_dir():
        yield f"the folder of the code, {trained.code}, is not on this machine"
    elif was is None:
        yield f"the code is the folder {trained.code}, which may have changed"
    elif changed := changed_files(was, Path(trained.code)):
        yield f"of the modules in {trained.code}, {' and '.join(changed)} changed"


def _of_starting_point(trained: ModelManifest) -> Iterator[str]:
    checkpoint = (trained.started_from or {}).get("checkpoint")
    if checkpoint is not None and not open_store(checkpoint).exists(MANIFEST):
        yield f"the checkpoint {checkpoint} from which it started is gone"


def _of_environment(trained: ModelManifest) -> Iterator[str]:
    now = packages()
    for name, was in trained.environment.items():
        if name in now and now[name] != was:
            yield f"{name} was {was} and is {now[name]}"
        elif name == "image":
            yield f"it was trained in the image {was}, and this is another environment"


def why_different(strategy: str, *, deterministic: bool) -> Iterator[str]:
    """Why another training of the same gives other weights, if it does."""
    if STRATEGIES[strategy].ps:
        yield f"under {strategy} workers do not wait for each other: another training differs"
    elif not deterministic:
        yield (
            "the option deterministic was not set, so that another training of the same may differ "
            "in the last bits"
        )
