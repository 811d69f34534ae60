"""The removal of what a plan says: in an order in which readers find an item whole or not at all.

Documents by which readers recognize something complete go first. So a removal that was killed
leaves what no reader finds, and what the next one removes.
"""

import time
from argparse import Namespace
from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import fields
from itertools import groupby

from aerotrain.contract.layout import MODEL, PARTS, PROMOTIONS, REMOVALS, RESULT, VERSIONS
from aerotrain.contract.retention import RetentionPolicy
from aerotrain.retention.plan import Item, RemovalPlan, make_plan
from aerotrain.serving.alias import alias_of
from aerotrain.store import MANIFEST, MissingError, Store, open_store
from aerotrain.store.manifest import each_of

#: Names of documents that lead readers to others.
_LEADING = (MODEL, RESULT)


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


def _stage(key: str) -> int:
    """When an object of an item is deleted: in the reverse of the order of their publication.

    First the manifest of the item, then results, then manifests and finished partitions within it,
    and then the files at its top, where TensorFlow Serving looks for a version.
    """
    *folders, name = key.split("/")
    is_at_top = len(folders) == 3
    if is_at_top and name == MANIFEST:
        return 0
    if name in _LEADING:
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
    print(plan.to_text(with_kept=given.kept))
    if not given.delete:
        print("nothing is removed; --delete removes what is listed")
        return
    done = remove(store, plan)
    print(f"removed: {done['items']:,} of {done['bytes']:,} bytes; left: {done['left']:,}")
