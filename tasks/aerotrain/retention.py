"""Retention: what of the store of all pipelines goes by a policy, why others stay, and its removal.

The store is listed once. What ``aerotrain.contract.layout`` does not name is no item, and stays.
What an item was made of is in its documents: a URL refers to an item by its end,
``/PIPELINE/datasets/ID/…``, so it is also found in a store that was copied, or that this machine
has under another address.

A removal deletes first the documents by which readers recognize something complete. So one that was
killed leaves what no reader finds, and what the next one removes.
"""

import json
import re
import time
from argparse import Namespace
from collections import defaultdict, deque
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, fields
from datetime import UTC, datetime
from itertools import groupby
from typing import Any
from urllib.parse import unquote

from aerotrain.contract.errors import FinalError, nearest
from aerotrain.contract.layout import (
    DATASETS,
    ITEM_KINDS,
    LATEST,
    MODEL,
    OF_RUNS,
    PARTS,
    PROMOTIONS,
    REMOVALS,
    RESULT,
    RUNS,
    STARTED_FROM,
    VERSIONS,
    dataset_key,
)
from aerotrain.contract.retention import RetentionPolicy
from aerotrain.serving.alias import alias_of
from aerotrain.store import MANIFEST, MissingError, Store, StoredObject, open_store
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

    key: str
    size: int
    modified: float
    documents: tuple[str, ...]
    is_complete: bool

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


def _name(key: str) -> str:
    return key.rpartition("/")[2]


def item_key(key: str) -> str | None:
    """The key of the item that the object ``key`` belongs to, or None."""
    parts = key.split("/", 3)
    kind = ITEM_KINDS.get(parts[1]) if len(parts) > 2 else None
    if kind is None or kind.is_folder != (len(parts) == 4):
        return None
    return "/".join(parts[:3]) if re.fullmatch(kind.names, parts[2]) else None


def _items_of(objects: Iterable[StoredObject]) -> dict[str, Item]:
    by_key: dict[str, list[StoredObject]] = defaultdict(list)
    for each in objects:
        if (key := item_key(each.key)) is not None:
            by_key[key].append(each)
    items = {}
    for key, held in by_key.items():
        kind, keys = ITEM_KINDS[key.split("/")[1]], [each.key for each in held]
        if kind.folder == RUNS and not any(_name(each) in OF_RUNS for each in keys):
            continue  # something else wrote it
        items[key] = Item(
            key=key,
            size=sum(each.size for each in held),
            modified=max(each.modified for each in held),
            documents=tuple(each for each in keys if _name(each) in kind.documents),
            is_complete=not kind.has_manifest or f"{key}/{MANIFEST}" in keys,
        )
    return items


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
            parts = unquote(url).split("/") if "://" in url else []
            ends = ("/".join(parts[start : start + 3]) for start in range(len(parts) - 2))
            key = next((each for each in ends if each in known), item.key)
            if key != item.key:
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
    marks: tuple[str, ...]

    @property
    def totals(self) -> dict[str, dict[str, int]]:
        """How many items of each kind go, and their bytes."""
        return {
            ITEM_KINDS[folder].title: {"items": len(sizes), "bytes": sum(sizes)}
            for folder, items in groupby(self.going, key=lambda each: each.folder)
            if (sizes := [each.size for each in items])
        }

    def to_text(self, *, with_kept: bool = False) -> str:
        """The plan for people: a line for each item that goes, and the totals."""
        lines = [
            f"{ITEM_KINDS[each.folder].title:<17} {each.size:>15,} bytes  "
            f"{datetime.fromtimestamp(each.modified, UTC):%Y-%m-%d %H:%M}  {each.key}"
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
    objects = list(store.list())
    items = _items_of(objects)
    pipelines = sorted({each.pipeline for each in items.values()})
    if pipeline is not None and pipeline not in pipelines:
        raise FinalError(
            f"{store.url} has no pipeline {pipeline!r}{nearest(pipeline, pipelines)}; it has "
            f"{', '.join(pipelines) or 'none'}"
        )
    since = now - policy.margin_hours * _HOUR
    kept: dict[str, str] = {}
    for key, why in (
        *_served(store, pipelines, policy),
        *_latest(store, [each.key for each in objects]),
        *_by_policy(items, policy, now, since),
    ):
        if key in items:  # not so a served version that was deleted by hand
            kept.setdefault(key, why)
    _keep_what_they_need(store, items, kept, since)
    going = [each for each in items.values() if each.key not in kept]
    order = list(ITEM_KINDS)
    going.sort(key=lambda each: (order.index(each.folder), each.modified, each.key))
    mark = re.compile(rf"[^/]+/{VERSIONS}/{REMOVALS}/\d+\.json")
    marks = (each.key for each in objects if mark.fullmatch(each.key) and each.modified <= since)

    def concerned(key: str) -> bool:
        return pipeline in (None, key.partition("/")[0])

    return RemovalPlan(
        policy=policy,
        written_since=since,
        going=tuple(each for each in going if concerned(each.key)),
        kept={key: why for key, why in kept.items() if concerned(key)},
        marks=tuple(filter(concerned, marks)),
    )


#: Keys of items that are kept, and why.
Reasons = Iterator[tuple[str, str]]


def _served(store: Store, pipelines: Iterable[str], policy: RetentionPolicy) -> Reasons:
    for pipeline in pipelines:
        versions = f"{pipeline}/{VERSIONS}"
        if (alias := alias_of(store.child(versions))) is not None:
            yield f"{versions}/{alias.version}", "served"
            for number in alias.rollbacks(policy.keep_rollbacks):
                yield f"{versions}/{number}", "served after a rollback"


def _latest(store: Store, keys: Iterable[str]) -> Reasons:
    """The newest data set of each name."""
    documents = [key for key in keys if re.fullmatch(rf"[^/]+/{LATEST}/[^/]+\.json", key)]
    for document, content in zip(documents, each_of(store.get, documents), strict=True):
        fingerprint = json.loads(content)["fingerprint"]
        yield f"{document.partition('/')[0]}/{dataset_key(fingerprint)}", "the newest data set"


def _by_policy(
    items: Mapping[str, Item], policy: RetentionPolicy, now: float, since: float
) -> Reasons:
    by_folder: dict[tuple[str, str], list[Item]] = defaultdict(list)
    for each in items.values():
        if each.modified > since:
            yield each.key, f"written within {policy.margin_hours:g} hours"
        elif each.modified > now - policy.keep_days * _DAY:
            yield each.key, f"not older than {policy.keep_days:g} days"
        if each.is_complete:
            by_folder[each.pipeline, each.folder].append(each)
    counts = {RUNS: policy.keep_runs, VERSIONS: policy.keep_versions, DATASETS: 1}
    for (_, folder), held in by_folder.items():
        count, noun = counts.get(folder, 0), f"{ITEM_KINDS[folder].title}s"
        why = f"of the newest {count} {noun}" if count > 1 else f"the newest of the {noun}"
        held.sort(key=lambda each: int(each.name) if each.folder == VERSIONS else each.modified)
        yield from ((each.key, why) for each in held[len(held) - count :])


def _keep_what_they_need(
    store: Store, items: Mapping[str, Item], kept: dict[str, str], since: float
) -> None:
    """Add to ``kept`` what the items in it were made of, and what these were made of, and so on."""
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


# --- the removal


def remove(store: Store, plan: RemovalPlan, say: Callable[[str], None] = print) -> dict[str, int]:
    """Remove what goes from the store of all pipelines; one that was used meanwhile is left.

    Returns:
        How many ``items`` and ``bytes`` were removed, and how many items were ``left``.
    """
    for mark in plan.marks:
        store.delete(mark)
    done = {"items": 0, "bytes": 0, "left": 0}
    for item in plan.going:
        is_removed = _remove(store, item, plan)
        if is_removed:
            done["items"] += 1
            done["bytes"] += item.size
        else:
            done["left"] += 1
        say(f"{'removed' if is_removed else 'left, because it was used meanwhile'}: {item.key}")
    return done


def _remove(store: Store, item: Item, plan: RemovalPlan) -> bool:
    objects = [store.stat(item.key)] if store.exists(item.key) else list(store.list(item.key))
    if any(each.modified > plan.written_since for each in objects):
        return False
    keys = [each.key for each in objects]
    if item.folder != VERSIONS:
        _delete(store, keys)
        return True
    versions = store.child(f"{item.pipeline}/{VERSIONS}")
    mark = f"{REMOVALS}/{item.name}.json"
    # First the mark, then the look at who promotes: see ``aerotrain.serving.alias``.
    versions.put(mark, b"{}\n")
    is_promoted = _is_promoted(versions, int(item.name), plan)
    if not is_promoted:
        _delete(store, keys)
        versions.delete(f"{PROMOTIONS}/{item.name}.json")
    versions.delete(mark)
    return not is_promoted


def _is_promoted(versions: Store, number: int, plan: RemovalPlan) -> bool:
    """Whether the version is served, or could be by a rollback, or is just promoted."""
    alias = alias_of(versions)
    if alias and number in (alias.version, *alias.rollbacks(plan.policy.keep_rollbacks)):
        return True
    try:
        return versions.stat(f"{PROMOTIONS}/{number}.json").modified > plan.written_since
    except MissingError:
        return False


def _stage(key: str) -> int:
    """When an object of an item is deleted: in the reverse of the order of their publication.

    First the manifest of the item, then results, then manifests and finished partitions within it,
    and then the files at its top, where TensorFlow Serving looks for a version.
    """
    *folders, name = key.split("/")
    is_at_top = len(folders) == 3
    if is_at_top and name == MANIFEST:
        return 0
    if name in (MODEL, RESULT):
        return 1
    if name == MANIFEST or folders[-1] == PARTS:
        return 2
    return 3 if is_at_top else 4


def _delete(store: Store, keys: Iterable[str]) -> None:
    for _, stage in groupby(sorted(keys, key=_stage), _stage):
        deque(each_of(store.delete, stage), maxlen=0)


def run(given: Namespace) -> None:
    """Print the plan, and carry it out with ``--delete``."""
    policy = RetentionPolicy.from_dict(
        {each.name: getattr(given, each.name) for each in fields(RetentionPolicy)}
    )
    store = open_store(given.store)
    plan = make_plan(store, policy, time.time(), given.pipeline)
    if not (plan.going or plan.kept):
        raise FinalError(
            f"{store.url} has nothing of a pipeline; give the folder of pipelines, such as "
            "s3://bucket, and name one by --pipeline"
        )
    print(plan.to_text(with_kept=given.kept))
    if not given.delete:
        print("nothing is removed; --delete removes what is listed")
        return
    done = remove(store, plan)
    print(f"removed: {done['items']:,} of {done['bytes']:,} bytes; left: {done['left']:,}")
