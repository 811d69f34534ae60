"""A store of pipelines as their runs leave it, without the contents of large files."""

import json
import os
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any
from urllib.parse import unquote

from aerotrain.contract.job import Job
from aerotrain.contract.layout import PLAN
from aerotrain.contract.preparing import PlanArguments
from aerotrain.contract.status import Result
from aerotrain.data.dataset import Dataset
from aerotrain.data.hashing import fingerprint_of
from aerotrain.data.partitions import partition_key
from aerotrain.data.prepare.plan import DatasetPlan, set_latest
from aerotrain.store import MANIFEST, Store, publish
from aerotrain.store.local import LocalStore
from aerotrain.user_code import publish_code

#: The time at which a store is looked at, and a day, in seconds.
NOW, DAY = time.time(), 86400.0


class Unsynced(LocalStore):
    """A store in a folder that waits for no disk, of which these tests write thousands of files."""

    def put(self, key: str, data: bytes, **_: object) -> str:
        path = self.root / key
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(data)
        return ""

    def upload(self, path: Path, key: str) -> None:
        self.put(key, path.read_bytes())

    def child(self, prefix: str) -> "Unsynced":
        return Unsynced(self.root / prefix)


@dataclass(frozen=True)
class Pipelines:
    """The store of all pipelines in ``folder``. What is added is written ``days`` ago."""

    folder: Path

    @property
    def store(self) -> Store:
        return LocalStore(self.folder)

    def _of(self, pipeline: str) -> Store:
        return Unsynced(self.folder / pipeline)

    def dataset(
        self, pipeline: str, source: str, days: float, *, complete: bool = True, name: str = ""
    ) -> str:
        """A prepared data set; with a ``name``, the newest of that name."""
        fingerprint = fingerprint_of(source)
        root = self._of(pipeline)
        store = root.child(f"datasets/{fingerprint}")
        described = {"kind": "csv", "url": source}
        plan = DatasetPlan(
            source=described,
            schema=None,
            rules=PlanArguments(source=described),
            partitions=("p",),
            shards_per_partition=1,
        )
        store.put(PLAN, plan.to_json().encode())
        store.put("train-00000-000.tfrecord", b"records")
        store.put(partition_key(0), b"{}")
        if complete:
            dataset = Dataset(fingerprint=fingerprint, source=described, schema={}, splits={})
            store.put(MANIFEST, dataset.to_json().encode())
        if name:
            set_latest(root, name, fingerprint)
        self._age(store, days)
        return store.url

    def code(self, pipeline: str, text: str, days: float) -> str:
        with TemporaryDirectory() as folder:
            (Path(folder) / "model.py").write_text(text)
            url = publish_code(self._of(pipeline), Path(folder))
        self._age(self.store, days, self._key(url))
        return url

    def run(
        self,
        pipeline: str,
        run: str,
        days: float,
        *,
        data: str = "",
        code: str | None = None,
        start_from: str | None = None,
        ended: bool = True,
    ) -> str:
        """A training; returns the URL of its model."""
        arguments = {"model": "m", "data": data, "start_from": start_from}
        where = {"name": "train", "module": "aerotrain.training.train", "task": "train"}
        job = Job(store=self._of(pipeline).url, run=run, arguments=arguments, code=code, **where)
        store = self._of(pipeline).child(f"runs/{run}/train")
        store.put("job.json", job.record())
        if ended:
            checkpoint = f"{store.url}/checkpoints/0001-0000000010"
            self._publish(store, "checkpoints/0001-0000000010", {"step": 10})
            model = {"version": 2, "data": data, "code": code, "checkpoint": checkpoint}
            model["started_from"] = start_from and {"start_from": start_from, "model": start_from}
            store.put("model.json", json.dumps(model).encode())
            result = Result(attempt="1", value=f"{store.url}/model.json")
            store.put("result.json", result.to_json().encode())
        self._age(store, days)
        return f"{store.url}/model.json"

    def version(self, pipeline: str, number: int, days: float, *, model: str, data: str) -> str:
        store = self._of(pipeline).child("serving")
        store.put(f"claims/{number}.json", b"{}")
        self._publish(store, str(number), {"model": model, "data": data})
        self._age(store.child(str(number)), days)
        return f"{store.url}/{number}"

    def predictions(self, pipeline: str, source: str, days: float, *, model: str) -> str:
        store = self._of(pipeline).child(f"predictions/{fingerprint_of(source)}")
        store.put(PLAN, json.dumps({"version": 2, "model": model}).encode())
        store.put("data/part-00000.parquet", b"rows")
        store.put(MANIFEST, json.dumps({"model": model}).encode())
        self._age(store, days)
        return store.url

    def whole(self, pipeline: str, name: str, days: float, number: int) -> dict[str, str]:
        """A run with a data set, an archive and an exported version of its own."""
        made = {
            "data": self.dataset(pipeline, name, days),
            "code": self.code(pipeline, name, days),
        }
        made["model"] = self.run(pipeline, name, days, **made)
        made["version"] = self.version(
            pipeline, number, days, model=made["model"], data=made["data"]
        )
        return made

    def key(self, url: str) -> str:
        """The key of the item that the URL is in, as a plan has it."""
        return "/".join(self._key(url).split("/")[:3])

    def keys(self, *urls: str) -> set[str]:
        return set(map(self.key, urls))

    def _key(self, url: str) -> str:
        return url.removeprefix(f"{self.store.url}/")

    def _publish(self, store: Store, prefix: str, about: Mapping[str, Any]) -> None:
        saved = self.folder.with_name("saved")
        if not saved.exists():
            (saved / "variables").mkdir(parents=True)
            (saved / "variables" / "variables.index").write_bytes(b"index")
            (saved / "saved_model.pb").write_bytes(b"graph")
        publish(store, saved, prefix, about)

    def _age(self, store: Store, days: float, key: str | None = None) -> None:
        top = self.folder / unquote(store.url).removeprefix(unquote(self.store.url)).lstrip("/")
        files = [top / key] if key else [each for each in top.rglob("*") if each.is_file()]
        for each in files:
            os.utime(each, (NOW - days * DAY,) * 2)
