"""What of the origin of a version is not there any more, or is another one: a sentence each."""

import multiprocessing
import sys
import tempfile
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from pathlib import Path

from aerotrain.contract.errors import AerotrainError
from aerotrain.contract.preparing import PlanArguments
from aerotrain.contract.strategy import STRATEGIES
from aerotrain.data.prepare.plan import DatasetPlan, make_plan
from aerotrain.reproduction.origin import Origin
from aerotrain.store import MANIFEST, open_store
from aerotrain.training.model_manifest import ModelManifest, packages
from aerotrain.user_code import changed_files, fetch_code


def changes(origin: Origin) -> list[str]:
    """What has changed since the version was made; an empty list if nothing has."""
    return [
        *_of_source(origin),
        *_of_code(origin.trained),
        *_of_starting_point(origin.trained),
        *_of_environment(origin.trained),
        *_of_options(origin),
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
    said = f"the source has changed: {same} of its {count} partitions are as they were"
    if len(now.partitions) != count:
        said += f", and it has {len(now.partitions)} now"
    if was.schema != now.schema:
        said += "; its columns are other ones"
    return f"{said}; its fingerprint was {was.fingerprint} and is {now.fingerprint}"


def _planned_now(rules: PlanArguments, code: str | None) -> DatasetPlan:
    """The plan of the source as it is now, by a process that may import the user's modules."""
    with ProcessPoolExecutor(1, mp_context=multiprocessing.get_context("spawn")) as pool:
        try:
            return pool.submit(_plan, rules, code).result()
        except BrokenProcessPool as error:
            raise RuntimeError("the process that listed it was ended") from error


def _plan(rules: PlanArguments, code: str | None) -> DatasetPlan:
    with tempfile.TemporaryDirectory() as folder:
        if code is not None:
            unpacked = str(fetch_code(code, Path(folder))) if "://" in code else code
            sys.path.insert(0, unpacked)
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


def _of_options(origin: Origin) -> Iterator[str]:
    deterministic = bool(origin.arguments.get("deterministic"))
    yield from why_different(origin.trained.strategy, deterministic=deterministic)


def why_different(strategy: str, *, deterministic: bool) -> Iterator[str]:
    """Why another training of the same gives other weights, if it does."""
    if STRATEGIES[strategy].ps:
        yield f"under {strategy} workers do not wait for each other: another training differs"
    elif not deterministic:
        yield (
            "the option deterministic was not set, so that another training of the same may differ "
            "in the last bits"
        )
