"""The plan of a retention: what is in the store of all pipelines, what goes, and why others stay.

The store is listed once. What ``aerotrain.contract.layout`` does not name is no item, and stays.
What an item was made of is in its documents: a URL refers to an item by its end,
``/PIPELINE/datasets/ID/…``, so it is also found in a store that was copied, or that this machine
has under another address.
"""

import json
import re
from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any
from urllib.parse import unquote

from aerotrain.contract.errors import FinalError, nearest
from aerotrain.contract.layout import (
    DATASETS,
    ITEM_KINDS,
    LATEST,
    OF_RUNS,
    REMOVALS,
    RESULT,
    RUNS,
    STARTED_FROM,
    VERSIONS,
    dataset_key,
)
from aerotrain.contract.retention import RetentionPolicy
from aerotrain.serving.alias import alias_of
from aerotrain.store import MANIFEST, MissingError, Store, StoredObject
from aerotrain.store.manifest import each_of

_HOUR, _DAY = 3600.0, 86400.0

#: The fields of documents that name the model from which a training took its first values. What
#: that one was made of is not needed, or the first of a row of models would be kept for ever.
_STARTS = ("start_from", "started_from")


@dataclass(frozen=True, kw_only=True)
class Item:
    """A folder or an object that is kept or removed as a whole.

    ``key`` is its key in the store of all pipelines, such as ``flats/runs/manual``, and ``size``
    its bytes. ``modified`` is the time of the last write, in seconds since 1970. ``documents`` are
    the keys of those that say what it was made of. ``is_complete`` says whether readers find it.
    """

    kind: str
    key: str
    size: int
    modified: float
    documents: tuple[str, ...] = ()
    is_complete: bool = True

    @property
    def pipeline(self) -> str:
        return self.key.partition("/")[0]

    @property
    def folder(self) -> str:
        """The folder of the pipeline that it is in, such as ``runs``."""
        return self.key.split("/")[1]

    @property
    def name(self) -> str:
        """Its own name: the id of a run, the number of a version, a fingerprint."""
        return _name(self.key)


@dataclass(frozen=True, kw_only=True)
class Contents:
    """All items by key, and other objects that decide about them.

    ``latest`` are the keys of the documents that name the newest data sets, ``removals`` the marks
    of versions whose removal has begun.
    """

    items: Mapping[str, Item]
    latest: tuple[str, ...] = ()
    removals: tuple[StoredObject, ...] = ()
    pipelines: frozenset[str] = field(default=frozenset())


def contents_of(store: Store) -> Contents:
    """The contents of the store of all pipelines."""
    objects: dict[str, list[StoredObject]] = defaultdict(list)
    latest, removals = [], []
    for stored in store.list():
        if (key := item_key(stored.key)) is not None:
            objects[key].append(stored)
        elif re.fullmatch(rf"[^/]+/{LATEST}/[^/]+\.json", stored.key):
            latest.append(stored.key)
        elif re.fullmatch(rf"[^/]+/{VERSIONS}/{REMOVALS}/\d+\.json", stored.key):
            removals.append(stored)
    items = {key: item for key, each in objects.items() if (item := _item(key, each)) is not None}
    return Contents(
        items=items,
        latest=tuple(latest),
        removals=tuple(removals),
        pipelines=frozenset(each.pipeline for each in items.values()),
    )


def item_key(key: str) -> str | None:
    """The key of the item that the object ``key`` belongs to, or None."""
    parts = key.split("/", 3)
    kind = ITEM_KINDS.get(parts[1]) if len(parts) > 2 else None
    if (
        kind is None
        or kind.is_folder != (len(parts) == 4)
        or not re.fullmatch(kind.names, parts[2])
    ):
        return None
    return "/".join(parts[:3])


def _item(key: str, objects: Iterable[StoredObject]) -> Item | None:
    """The item of these objects; None if it is none of a pipeline."""
    kind = ITEM_KINDS[key.split("/")[1]]
    keys = [each.key for each in objects]
    if kind.folder == RUNS and not any(_name(each) in OF_RUNS for each in keys):
        return None
    return Item(
        kind=kind.title,
        key=key,
        size=sum(each.size for each in objects),
        modified=max(each.modified for each in objects),
        documents=tuple(each for each in keys if _name(each) in kind.documents),
        is_complete=not kind.has_manifest or f"{key}/{MANIFEST}" in keys,
    )


def _name(key: str) -> str:
    return key.rpartition("/")[2]


# --- what an item was made of


def _references(store: Store, item: Item, known: Collection[str], since: float) -> dict[str, bool]:
    """The keys, among ``known``, of the items that the documents of ``item`` name.

    The value says whether what that item was made of is needed, too. The results of a run's jobs
    count if it was written to after ``since``: a later task of the run may read them.

    Raises:
        FinalError: a document is no JSON.
    """
    found: dict[str, bool] = {}
    for document in item.documents:
        if _name(document) == RESULT and item.modified <= since:
            continue
        for url, is_start in _strings(_read(store, document), _name(document) == STARTED_FROM):
            key = _item_of(url, known)
            if key is not None and key != item.key:
                found[key] = found.get(key, False) or not is_start
    return found


def _read(store: Store, document: str) -> Any:
    try:
        return json.loads(store.get(document))
    except MissingError:
        return None  # it was just removed
    except ValueError as error:
        raise FinalError(
            f"{store.url}/{document} is no JSON ({error}), so that what it names cannot be kept: "
            "restore it, or delete it"
        ) from error


def _strings(value: Any, is_start: bool) -> Iterator[tuple[str, bool]]:
    """All strings in a JSON document, and whether each is in a field of ``_STARTS``."""
    if isinstance(value, str):
        yield value, is_start
    elif isinstance(value, dict):
        for name, each in value.items():
            yield from _strings(each, is_start or name in _STARTS)
    elif isinstance(value, list):
        for each in value:
            yield from _strings(each, is_start)


def _item_of(url: str, known: Collection[str]) -> str | None:
    parts = unquote(url).split("/") if "://" in url else []
    for start in range(len(parts) - 2):
        if (key := "/".join(parts[start : start + 3])) in known:
            return key
    return None


# --- the plan


@dataclass(frozen=True, kw_only=True)
class RemovalPlan:
    """What goes, by kind and then oldest first, and the reason of each item that is kept, by key.

    ``written_since`` is the time, in seconds since 1970, since which whatever was written is kept.
    ``marks`` are the keys of marks of removals of versions that did not end.
    """

    policy: RetentionPolicy
    written_since: float
    going: tuple[Item, ...]
    kept: Mapping[str, str]
    marks: tuple[str, ...] = ()

    @property
    def totals(self) -> dict[str, dict[str, int]]:
        """How many items of each kind go, and their bytes."""
        sizes: dict[str, list[int]] = defaultdict(list)
        for each in self.going:
            sizes[each.kind].append(each.size)
        return {kind: {"items": len(each), "bytes": sum(each)} for kind, each in sizes.items()}

    def to_text(self, *, with_kept: bool = False) -> str:
        """The plan for people: a line for each item that goes, and the totals."""
        lines = [
            f"{each.kind:<17} {each.size:>15,} bytes  {_date(each.modified)}  {each.key}"
            for each in self.going
        ]
        if with_kept:
            lines += [f"kept: {key}, {why}" for key, why in sorted(self.kept.items())]
        lines += [
            f"{kind}: {each['items']:,} of {each['bytes']:,} bytes"
            for kind, each in self.totals.items()
        ]
        total = sum(each.size for each in self.going)
        lines.append(f"together {len(self.going):,} of {total:,} bytes; kept: {len(self.kept):,}")
        return "\n".join(lines)


def make_plan(
    store: Store, policy: RetentionPolicy, now: float, pipeline: str | None = None
) -> RemovalPlan:
    """The plan for the store of all pipelines at the time ``now``, or for one of its pipelines.

    What another pipeline refers to is kept, too. Nothing is changed.

    Raises:
        FinalError: there is no such pipeline, or a document that says what is needed is damaged.
    """
    contents = contents_of(store)
    if pipeline is not None and pipeline not in contents.pipelines:
        raise FinalError(
            f"{store.url} has no pipeline {pipeline!r}{nearest(pipeline, contents.pipelines)}; it "
            f"has {', '.join(sorted(contents.pipelines)) or 'none'}"
        )
    since = now - policy.margin_hours * _HOUR
    kept = _kept_by_policy(store, contents, policy, now, since)
    _keep_what_they_need(store, contents, kept, since)
    going = [
        each
        for each in contents.items.values()
        if each.key not in kept and pipeline in (None, each.pipeline)
    ]
    order = list(ITEM_KINDS)
    going.sort(key=lambda each: (order.index(each.folder), each.modified, each.key))
    return RemovalPlan(
        policy=policy,
        written_since=since,
        going=tuple(going),
        kept={key: why for key, why in kept.items() if pipeline in (None, key.partition("/")[0])},
        marks=tuple(
            each.key
            for each in contents.removals
            if each.modified <= since and pipeline in (None, each.key.partition("/")[0])
        ),
    )


def _kept_by_policy(
    store: Store, contents: Contents, policy: RetentionPolicy, now: float, since: float
) -> dict[str, str]:
    """The reasons of the items that the policy keeps, and of those that are in use."""
    kept: dict[str, str] = {}
    for key, why in _in_use(store, contents, policy):
        kept.setdefault(key, why)
    by_folder: dict[tuple[str, str], list[Item]] = defaultdict(list)
    for each in contents.items.values():
        if each.modified > since:
            kept.setdefault(each.key, f"written within {policy.margin_hours:g} hours")
        elif each.modified > now - policy.keep_days * _DAY:
            kept.setdefault(each.key, f"not older than {policy.keep_days:g} days")
        if each.is_complete:
            by_folder[each.pipeline, each.folder].append(each)
    counts = {RUNS: policy.keep_runs, VERSIONS: policy.keep_versions, DATASETS: 1}
    for (_, folder), items in by_folder.items():
        count, noun = counts.get(folder, 0), f"{ITEM_KINDS[folder].title}s"
        why = f"of the newest {count} {noun}" if count > 1 else f"the newest of the {noun}"
        items.sort(key=lambda each: int(each.name) if each.folder == VERSIONS else each.modified)
        for each in items[len(items) - count :]:
            kept.setdefault(each.key, why)
    return kept


def _in_use(store: Store, contents: Contents, policy: RetentionPolicy) -> Iterable[tuple[str, str]]:
    """The versions that are served or could be by rollbacks, and the newest data sets by name."""
    for pipeline in sorted(contents.pipelines):
        versions = f"{pipeline}/{VERSIONS}"
        if (alias := alias_of(store.child(versions))) is not None:
            yield f"{versions}/{alias.version}", "served"
            for number in alias.rollbacks(policy.keep_rollbacks):
                yield f"{versions}/{number}", "served after a rollback"
    for document, content in zip(contents.latest, each_of(store.get, contents.latest), strict=True):
        fingerprint = json.loads(content)["fingerprint"]
        yield f"{document.partition('/')[0]}/{dataset_key(fingerprint)}", "the newest data set"


def _keep_what_they_need(
    store: Store, contents: Contents, kept: dict[str, str], since: float
) -> None:
    """Add to ``kept`` what the items in it were made of, and what these were made of, and so on."""
    items = contents.items
    for key in kept.keys() - items.keys():
        del kept[key]  # such as a served version that was deleted by hand
    starts: dict[str, str] = {}
    new: Collection[str] = list(kept)
    while new:
        found: dict[str, str] = {}
        needs = each_of(lambda key: _references(store, items[key], items, since), new)
        for key, needed in zip(new, needs, strict=True):
            for other, is_whole in needed.items():
                (found if is_whole else starts).setdefault(other, f"needed by {key}")
        new = [key for key in found if key not in kept]
        kept |= {key: found[key] for key in new}
    for key, why in starts.items():
        kept.setdefault(key, why)


def _date(modified: float) -> str:
    return datetime.fromtimestamp(modified, UTC).strftime("%Y-%m-%d %H:%M")
