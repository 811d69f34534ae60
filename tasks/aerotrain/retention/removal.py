"""The removal of what a plan says: in an order in which readers find an item whole or not at all.

Documents by which readers recognize something complete go first. So a removal that was killed
leaves what no reader finds, and what the next one removes.
"""

import time
from argparse import Namespace
from collections import defaultdict, deque
from collections.abc import Callable, Iterable
from dataclasses import fields

from aerotrain.contract.layout import MODEL, PARTS, PROMOTIONS, REMOVALS, RESULT, VERSIONS
from aerotrain.contract.retention import RetentionPolicy
from aerotrain.retention.contents import Item, ItemKind
from aerotrain.retention.plan import RemovalPlan, make_plan
from aerotrain.serving.alias import alias_of
from aerotrain.store import MANIFEST, MissingError, Store, StoredObject, open_store
from aerotrain.store.manifest import each_of

#: Names of documents that lead readers to others.
_LEADING = (MODEL, RESULT)


def remove(store: Store, plan: RemovalPlan, say: Callable[[str], None] = print) -> dict[str, int]:
    """Remove what goes from the store of all pipelines; one that was used meanwhile is left.

    Returns:
        How many ``items`` and ``bytes`` were removed, and how many items were ``left``.
    """
    done = {"items": 0, "bytes": 0, "left": 0}
    for item in plan.going:
        is_removed = _remove(store, item, plan)
        if is_removed:
            done["items"] += 1
            done["bytes"] += item.size
        else:
            done["left"] += 1
        say(f"{'removed' if is_removed else 'left, because it was used meanwhile'}: {item.key}")
    for mark in plan.marks:
        store.delete(mark)
    return done


def _remove(store: Store, item: Item, plan: RemovalPlan) -> bool:
    if item.upload is not None:
        store.abort(item.upload)
        return True
    objects = _objects(store, item)
    if any(each.modified > plan.written_since for each in objects):
        return False
    keys = [each.key for each in objects]
    if item.kind is not ItemKind.VERSION:
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


def _objects(store: Store, item: Item) -> list[StoredObject]:
    if item.kind not in (ItemKind.CODE, ItemKind.REUSE):
        return list(store.list(item.key))
    try:
        return [store.stat(item.key)]
    except MissingError:
        return []


def _is_promoted(versions: Store, number: int, plan: RemovalPlan) -> bool:
    """Whether the version is served, or could be by a rollback, or is just promoted."""
    alias = alias_of(versions)
    if alias is not None and number in (
        alias.version,
        *alias.rollbacks(plan.policy.keep_rollbacks),
    ):
        return True
    try:
        promoted = versions.stat(f"{PROMOTIONS}/{number}.json")
    except MissingError:
        return False
    return promoted.modified > plan.written_since


def stages(keys: Iterable[str]) -> list[list[str]]:
    """The keys of an item in groups to delete one after another.

    Its manifest goes first, then results, then manifests and finished partitions within it, and
    then the files at its top, where TensorFlow Serving looks for a version: the reverse of the
    order of their publication.
    """
    found: dict[int, list[str]] = defaultdict(list)
    for key in keys:
        *folders, name = key.split("/")
        is_at_top = len(folders) == 3
        if is_at_top and name == MANIFEST:
            found[0].append(key)
        elif name in _LEADING:
            found[1].append(key)
        elif name == MANIFEST or folders[-1] == PARTS:
            found[2].append(key)
        else:
            found[3 if is_at_top else 4].append(key)
    return [found[stage] for stage in sorted(found)]


def _delete(store: Store, keys: Iterable[str]) -> None:
    for stage in stages(keys):
        deque(each_of(store.delete, stage), maxlen=0)


def run(given: Namespace) -> None:
    """Print the plan, and carry it out with ``--delete``."""
    policy = RetentionPolicy.from_dict(
        {each.name: getattr(given, each.name) for each in fields(RetentionPolicy)}
    )
    store = open_store(given.store)
    plan = make_plan(store, policy, time.time(), given.pipeline)
    print(plan.to_text(with_kept=given.kept))
    if not given.delete:
        print("nothing is removed; --delete removes what is listed")
        return
    done = remove(store, plan)
    print(f"removed: {done['items']:,} of {done['bytes']:,} bytes; left: {done['left']:,}")
