"""What is in the store of all pipelines: runs, data sets, versions and others, each one item.

It takes one listing of the store. What is not laid out as a pipeline's store is no item.
"""

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from enum import StrEnum

from aerotrain.contract.layout import (
    CODE,
    DATASETS,
    JOB,
    LATEST,
    LEASE,
    MODEL,
    PLAN,
    PREDICTIONS,
    REMOVALS,
    RESULT,
    REUSE,
    RUN_LOG,
    RUNS,
    STARTED_FROM,
    VERSIONS,
)
from aerotrain.store import MANIFEST, Store, StoredObject, Unfinished


class ItemKind(StrEnum):
    """The kinds of items, as a plan lists them."""

    RUN = "run"
    VERSION = "version"
    DATASET = "data set"
    PREDICTIONS = "predictions"
    CODE = "code archive"
    REUSE = "reuse record"
    UPLOAD = "unfinished upload"


#: The folders of a pipeline's store whose entries are items, and the names of these entries.
_LAYOUT: Mapping[str, tuple[ItemKind, str]] = {
    RUNS: (ItemKind.RUN, r".+"),
    VERSIONS: (ItemKind.VERSION, r"[1-9]\d*"),
    DATASETS: (ItemKind.DATASET, r"[0-9a-f]{8,64}"),
    PREDICTIONS: (ItemKind.PREDICTIONS, r"[0-9a-f]{8,64}"),
    CODE: (ItemKind.CODE, r"[0-9a-f]{64}\.tar\.gz"),
    REUSE: (ItemKind.REUSE, r"[0-9a-f]{64}\.json"),
}

_DOCUMENTS = (JOB, MODEL, STARTED_FROM, RESULT)
_MADE_OF = {
    ItemKind.RUN: _DOCUMENTS,
    ItemKind.VERSION: (MANIFEST,),
    ItemKind.DATASET: (PLAN,),
    ItemKind.PREDICTIONS: (PLAN,),
}

#: A folder of ``runs/`` without any of these was written by something else.
_OF_RUNS = {*_DOCUMENTS, LEASE, RUN_LOG}


@dataclass(frozen=True, kw_only=True)
class Item:
    """A folder or an object that is kept or removed as a whole.

    ``key`` is its key in the store of all pipelines, such as ``flats/runs/manual``, and ``size``
    its bytes. ``modified`` is the time of the last write, in seconds since 1970. ``documents`` are
    the keys of those that say what it was made of. ``is_complete`` says whether readers find it.
    """

    kind: ItemKind
    key: str
    size: int
    modified: float
    documents: tuple[str, ...] = ()
    is_complete: bool = True
    upload: Unfinished | None = None

    @property
    def pipeline(self) -> str:
        return self.key.partition("/")[0]

    @property
    def name(self) -> str:
        """Its own name: the id of a run, the number of a version, a fingerprint."""
        return self.key.rpartition("/")[2]


@dataclass(frozen=True, kw_only=True)
class Contents:
    """All items by key, and other objects that decide about them.

    ``latest`` are the keys of the documents that name the newest data sets, ``removals`` the marks
    of versions whose removal has begun.
    """

    items: Mapping[str, Item]
    uploads: tuple[Item, ...] = ()
    latest: tuple[str, ...] = ()
    removals: tuple[StoredObject, ...] = ()
    pipelines: frozenset[str] = field(default=frozenset())


def contents_of(store: Store) -> Contents:
    """The contents of the store of all pipelines."""
    objects: dict[str, list[StoredObject]] = {}
    latest, removals = [], []
    for stored in store.list():
        if (key := item_key(stored.key)) is not None:
            objects.setdefault(key, []).append(stored)
        elif re.fullmatch(rf"[^/]+/{LATEST}/[^/]+\.json", stored.key):
            latest.append(stored.key)
        elif re.fullmatch(rf"[^/]+/{VERSIONS}/{REMOVALS}/\d+\.json", stored.key):
            removals.append(stored)
    items = {key: item for key, each in objects.items() if (item := _item(key, each)) is not None}
    uploads = [_upload(each) for each in store.unfinished() if item_key(each.key) is not None]
    return Contents(
        items=items,
        uploads=tuple(uploads),
        latest=tuple(latest),
        removals=tuple(removals),
        pipelines=frozenset(each.pipeline for each in [*items.values(), *uploads]),
    )


def item_key(key: str) -> str | None:
    """The key of the item that the object ``key`` belongs to, or None."""
    parts = key.split("/", 3)
    if len(parts) < 3 or parts[1] not in _LAYOUT:
        return None
    kind, name = _LAYOUT[parts[1]]
    is_folder = kind not in (ItemKind.CODE, ItemKind.REUSE)
    if re.fullmatch(name, parts[2]) is None or is_folder != (len(parts) == 4):
        return None
    return "/".join(parts[:3])


def _item(key: str, objects: Iterable[StoredObject]) -> Item | None:
    """The item of these objects; None if it is none of a pipeline."""
    kind, _ = _LAYOUT[key.split("/")[1]]
    keys = [each.key for each in objects]
    if kind is ItemKind.RUN and not any(_name(each) in _OF_RUNS for each in keys):
        return None
    if kind is ItemKind.RUN:
        documents = [each for each in keys if _name(each) in _DOCUMENTS]
    else:
        documents = [each for name in _MADE_OF.get(kind, ()) if (each := f"{key}/{name}") in keys]
    has_manifest = kind in (ItemKind.VERSION, ItemKind.DATASET, ItemKind.PREDICTIONS)
    return Item(
        kind=kind,
        key=key,
        size=sum(each.size for each in objects),
        modified=max(each.modified for each in objects),
        documents=tuple(documents),
        is_complete=not has_manifest or f"{key}/{MANIFEST}" in keys,
    )


def _upload(upload: Unfinished) -> Item:
    return Item(
        kind=ItemKind.UPLOAD,
        key=upload.key,
        size=upload.size,
        modified=upload.modified,
        is_complete=False,
        upload=upload,
    )


def _name(key: str) -> str:
    return key.rpartition("/")[2]
