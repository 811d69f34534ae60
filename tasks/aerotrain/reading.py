"""What is in the store of a pipeline: runs, data sets, predictions and versions of its model.

Notebooks read it by ``aerotrain.read``, and the page of models in Airflow's UI shows it. The newest
entries are first. ``aerotrain.contract.layout`` says what else the store has.
"""

import io
import json
from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import cache, cached_property
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, TypeVar

from aerotrain.contract import layout
from aerotrain.contract.curves import Curves
from aerotrain.contract.errors import FinalError, nearest
from aerotrain.contract.gate import SERVING
from aerotrain.data.dataset import Dataset, as_numbers
from aerotrain.serving.alias import Alias, alias_of, served_number
from aerotrain.serving.versions import claim_key, complete_versions
from aerotrain.store import MANIFEST, MissingError, Store, fetch, open_store
from aerotrain.store.manifest import each_of

#: Records of a batch that become rows of a table at once.
_ROWS = 4096


@dataclass(frozen=True)
class Entry:
    """An entry of the store: its folder, its name, and the time at which it was written."""

    store: Store
    name: str
    at: datetime

    @property
    def url(self) -> str:
        return self.store.url

    @cached_property
    def manifest(self) -> dict[str, Any]:
        """What says that it is complete: of a data set, of predictions or of a version."""
        return dict(json.loads(self.store.get(MANIFEST)))

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.name}, {self.at:%Y-%m-%d %H:%M}>"


_Kind = TypeVar("_Kind", bound=Entry)


@dataclass(frozen=True, repr=False)
class Run(Entry):
    """A run by its id, of Airflow or of the command line. Its time is that of its start."""

    keys: tuple[str, ...]

    def _tasks(self, name: str) -> dict[str, str]:
        """The tasks that have written an object of that name, and its key."""
        return {key.removesuffix(f"/{name}"): key for key in self.keys if key.endswith(f"/{name}")}

    @cached_property
    def evaluations(self) -> dict[str, dict[str, Any]]:
        """What ``evaluate`` has found, by task: metrics, intervals, verdicts, candidate."""
        keys = self._tasks(layout.METRICS)
        found = map(json.loads, each_of(self.store.get, keys.values()))
        return dict(zip(keys, found, strict=True))

    @property
    def metrics(self) -> dict[str, dict[str, float]]:
        """The metrics on the test split, by the task that measured them."""
        return {task: as_numbers(each["metrics"]) for task, each in self.evaluations.items()}

    def curves(self, task: str = "train") -> Any:
        """A table of the loss, metrics and rates of a training by step.

        Rows with an ``epoch`` have the metrics of that whole epoch.
        """
        if task not in (tasks := self._tasks(layout.CURVES)):
            there = ", ".join(tasks) or "none"
            raise FinalError(f"the run {self.name} has no curves of {task!r}; it has: {there}")
        points = Curves.from_bytes(self.store.get(tasks[task])).points
        rows = [{"step": p.step, "at": _time(p.at), "epoch": p.epoch, **p.metrics} for p in points]
        return _pandas().DataFrame(rows).set_index("step")


class DataFolder(Entry):
    """A finished data set. Its name is its fingerprint."""

    def tf_data(
        self, split: str = "train", *, batch_size: int = 256, records: int | None = None
    ) -> Any:
        """A ``tf.data.Dataset`` of batches ``{column: tensor}``, before the module's transform.

        ``records`` are the first ones. Their shards are on this disk until the process ends.
        """
        import tensorflow as tf

        from aerotrain.training.input.batches import RecordFiles, parse
        from aerotrain.training.input.shards import download, enough, split_of

        dataset = Dataset.from_json(self.store.get(MANIFEST))
        found, schema = split_of(dataset, split), dataset.schema
        count = found.records if records is None else min(records, found.records)
        paths = download(self.url, enough(found.shards, count), Path(_scratch(self.url).name))
        batches = RecordFiles.of(paths).records().take(count).batch(batch_size)
        length = tf.data.experimental.assert_cardinality(-(-count // batch_size))
        return batches.map(lambda strings: parse(strings, schema)).apply(length).prefetch(2)

    def pandas(self, split: str = "train", *, records: int | None = None) -> Any:
        """A table of a split, or of its first ``records``; columns with a shape hold arrays."""
        frames = []
        for batch in self.tf_data(split, batch_size=_ROWS, records=records).as_numpy_iterator():
            for name, values in batch.items():
                if values.ndim > 1 or values.dtype == object:
                    batch[name] = list(map(_cell, values))
            frames.append(_pandas().DataFrame(batch))
        return _pandas().concat(frames, ignore_index=True)


class Predictions(Entry):
    """Finished predictions for a whole source. Their name is a fingerprint."""

    def pandas(self) -> Any:
        """A table with a row for each record."""
        keys = [each.key for each in self.store.list(layout.DATA)]
        read, files = _pandas().read_parquet, each_of(self.store.get, keys)
        return _pandas().concat([read(io.BytesIO(each)) for each in files], ignore_index=True)


@dataclass(frozen=True, repr=False)
class Version(Entry):
    """An exported version of the model. Its name is its number."""

    pipeline: "Pipeline"
    is_served: bool

    @property
    def model(self) -> str:
        """The URL of the trained model."""
        return str(self.manifest["about"]["model"])

    @cached_property
    def run(self) -> Run | None:
        """The run that exported it; None if it was removed."""
        claim = _json(self.pipeline.store, f"{layout.VERSIONS}/{claim_key(int(self.name))}")
        return next(iter(self.pipeline.runs(claim["run"])), None) if "run" in claim else None

    @cached_property
    def evaluation(self) -> dict[str, Any]:
        """What ``evaluate`` has found of its model in that run, and the key of the ``card``."""
        if (run := self.run) is None:
            return {}
        for task, each in run.evaluations.items():
            made = each.get("candidate", {})
            if made.get("model") == self.model and "format" not in made:
                return {**each, "card": f"{layout.RUNS}/{run.name}/{task}/{layout.CARD}"}
        return {}

    @property
    def metrics(self) -> dict[str, float]:
        """The metrics on the test split; empty if its run has not evaluated it."""
        return as_numbers(self.evaluation.get("metrics", {}))

    @cached_property
    def started_from(self) -> str | None:
        """The URL of the model from whose weights the training started."""
        key = self.model.removeprefix(f"{self.pipeline.store.url}/")
        found = {} if "://" in key else _json(self.pipeline.store, key)
        return (found.get("started_from") or {}).get("model")

    def load(self) -> Any:
        """The SavedModel, whose ``signatures["serving_default"]`` predicts."""
        import tensorflow as tf

        folder = _scratch(self.url).name
        fetch(self.store, "", Path(folder))
        return tf.saved_model.load(folder)


@dataclass(frozen=True)
class Pipeline:
    """A pipeline by its store."""

    store: Store

    @classmethod
    def at(cls, url: str) -> "Pipeline":
        """The pipeline whose store is ``url``. Raises ``FinalError`` if there is none."""
        store = open_store(url)
        folders = store.folders()
        if not layout.ITEM_KINDS.keys() & folders:
            there = f"; it has {', '.join(folders)}: add one of them to the URL" if folders else ""
            raise FinalError(f"{store.url} is not the store of a pipeline{there}")
        return cls(store)

    def runs(self, name: str = "") -> list[Run]:
        """All runs, or that of one name."""
        written: dict[str, dict[str, float]] = defaultdict(dict)
        for each in self.store.list(f"{layout.RUNS}/{name}"):
            _, run, *key = each.key.split("/", 2)
            written[run].update(dict.fromkeys(key, each.modified))
        folder = self.store.child(layout.RUNS)
        return _newest_first(
            Run(folder.child(run), run, _time(min(times.values())), tuple(times))
            for run, times in written.items()
            if times
        )

    def run(self, run_id: str) -> Run:
        """The run of that id. Raises ``FinalError`` if there is none."""
        for name in {layout.path_segment(run_id), run_id}:  # the id, or the name of an entry
            if layout.is_path_segment(name) and (found := self.runs(name)):
                return found[0]
        near = nearest(run_id, self.store.folders(layout.RUNS))
        raise FinalError(f"{self.store.url} has no run {run_id!r}{near}; runs() lists them")

    def datasets(self) -> list[DataFolder]:
        """All finished data sets."""
        return self._complete(DataFolder, layout.DATASETS)

    def predictions(self) -> list[Predictions]:
        """All finished predictions."""
        return self._complete(Predictions, layout.PREDICTIONS)

    def versions(self) -> list[Version]:
        """All exported versions of the model, the highest number first."""
        versions = self.store.child(layout.VERSIONS)
        complete, served = complete_versions(versions), served_number(versions)
        return [
            Version(versions.child(f"{n}"), f"{n}", _time(each.modified), self, n == served)
            for n, each in reversed(complete.items())
        ]

    def model(self, version: int | str = SERVING) -> Version:
        """The version of that number, or of that alias. Raises ``FinalError`` if there is none."""
        versions = self.versions()
        for each in versions:
            if each.name == str(version) or (version == SERVING and each.is_served):
                return each
        there = ", ".join(each.name for each in versions) or "none"
        raise FinalError(f"{self.store.url} has no version {version}; it has {there}")

    def alias(self) -> Alias | None:
        """Which version was promoted, with the history; None if none was."""
        return alias_of(self.store.child(layout.VERSIONS))

    def _complete(self, kind: type[_Kind], folder: str) -> list[_Kind]:
        """The entries of a folder that have a manifest."""
        found = ((each.key.split("/"), each.modified) for each in self.store.list(folder))
        return _newest_first(
            kind(self.store.child(f"{folder}/{name}"), name, _time(written))
            for (_, name, *key), written in found
            if key == [MANIFEST]
        )


def _newest_first(entries: Iterable[_Kind]) -> list[_Kind]:
    return sorted(entries, key=lambda each: each.at, reverse=True)


def _time(seconds: float) -> datetime:
    return datetime.fromtimestamp(seconds, UTC)


def _json(store: Store, key: str) -> dict[str, Any]:
    """A JSON object of the store; empty if it was removed."""
    try:
        return dict(json.loads(store.get(key)))
    except MissingError:
        return {}


def _cell(value: Any) -> Any:
    """A text as such; an array, and bytes that are no text, as they are."""
    try:
        return value.decode()
    except (AttributeError, UnicodeDecodeError):
        return value


def _pandas() -> Any:
    try:
        import pandas
    except ImportError as error:
        raise FinalError(
            "tables need the package pandas: install it, or the extra notebook"
        ) from error
    return pandas


@cache
def _scratch(url: str) -> TemporaryDirectory[str]:
    """A folder on this disk for what is at ``url``, until the process ends."""
    return TemporaryDirectory(prefix="aerotrain-read-")
