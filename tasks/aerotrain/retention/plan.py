"""The plan of a retention: what goes, and why each other item is kept."""

import json
from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime

from aerotrain.contract.errors import FinalError, nearest
from aerotrain.contract.layout import VERSIONS, dataset_key
from aerotrain.contract.retention import RetentionPolicy
from aerotrain.retention.contents import Contents, Item, ItemKind, contents_of
from aerotrain.retention.references import references_of
from aerotrain.serving.alias import alias_of
from aerotrain.store import Store
from aerotrain.store.manifest import each_of

_HOUR, _DAY = 3600.0, 86400.0


@dataclass(frozen=True, kw_only=True)
class RemovalPlan:
    """What goes, by kind and then oldest first, and the reason of each item that is kept, by key.

    ``written_since`` is the time, in seconds since 1970, since which whatever was written is kept.
    ``marks`` are the keys of marks of removals that did not end, of versions that are kept.
    """

    policy: RetentionPolicy
    written_since: float
    going: tuple[Item, ...]
    kept: Mapping[str, str]
    marks: tuple[str, ...] = ()

    @property
    def totals(self) -> dict[str, dict[str, int]]:
        """How many items of each kind go, and their bytes."""
        found: dict[str, dict[str, int]] = {}
        for each in self.going:
            of_kind = found.setdefault(each.kind.value, {"items": 0, "bytes": 0})
            of_kind["items"] += 1
            of_kind["bytes"] += each.size
        return found

    def to_text(self, *, with_kept: bool = False) -> str:
        """The plan for people: a line for each item that goes, and the totals."""
        lines = [
            f"{each.kind.value:<17} {each.size:>15,} bytes  {_date(each.modified)}  {each.key}"
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
    uploads = [each for each in contents.uploads if each.modified <= since]
    order = list(ItemKind)
    going = [
        each
        for each in [*contents.items.values(), *uploads]
        if each.key not in kept or each.kind is ItemKind.UPLOAD
        if pipeline in (None, each.pipeline)
    ]
    going.sort(key=lambda each: (order.index(each.kind), each.modified, each.key))
    gone = {each.key for each in going}
    return RemovalPlan(
        policy=policy,
        written_since=since,
        going=tuple(going),
        kept={key: why for key, why in kept.items() if pipeline in (None, key.partition("/")[0])},
        marks=tuple(
            each.key
            for each in contents.removals
            if each.modified <= since and _version_of(each.key) not in gone
            if pipeline in (None, each.key.partition("/")[0])
        ),
    )


def _kept_by_policy(
    store: Store, contents: Contents, policy: RetentionPolicy, now: float, since: float
) -> dict[str, str]:
    """The reasons of the items that the policy keeps, and of those that are in use."""
    kept: dict[str, str] = {}
    for key, why in _in_use(store, contents, policy):
        kept.setdefault(key, why)
    by_kind: dict[tuple[str, ItemKind], list[Item]] = defaultdict(list)
    for each in contents.items.values():
        if each.modified > since:
            kept.setdefault(each.key, f"written within {policy.margin_hours:g} hours")
        elif each.modified > now - policy.keep_days * _DAY:
            kept.setdefault(each.key, f"not older than {policy.keep_days:g} days")
        if each.is_complete:
            by_kind[each.pipeline, each.kind].append(each)
    for (_, kind), items in by_kind.items():
        if kind is ItemKind.RUN:
            items.sort(key=lambda each: each.modified)
            _keep(kept, items, policy.keep_runs, "runs")
        elif kind is ItemKind.VERSION:
            items.sort(key=lambda each: int(each.name))
            _keep(kept, items, policy.keep_versions, "versions")
        elif kind is ItemKind.DATASET:
            items.sort(key=lambda each: each.modified)
            _keep(kept, items, 1, "data sets")
    return kept


def _keep(kept: dict[str, str], items: list[Item], count: int, noun: str) -> None:
    why = f"of the newest {count} {noun}" if count > 1 else f"the newest of the {noun}"
    for each in items[-count:]:
        kept.setdefault(each.key, why)


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

    def references(key: str) -> Mapping[str, bool]:
        is_recent = items[key].modified > since
        return references_of(store, items[key], items, with_results=is_recent)

    starts: dict[str, str] = {}
    new: Collection[str] = list(kept)
    while new:
        found: dict[str, str] = {}
        for key, needed in zip(new, each_of(references, new), strict=True):
            for other, is_whole in needed.items():
                (found if is_whole else starts).setdefault(other, f"needed by {key}")
        new = [key for key in found if key not in kept]
        kept |= {key: found[key] for key in new}
    for key, why in starts.items():
        kept.setdefault(key, why)


def _version_of(mark: str) -> str:
    """The key of the version whose removal ``mark`` marks."""
    pipeline, _, rest = mark.partition("/")
    return f"{pipeline}/{VERSIONS}/{rest.rpartition('/')[2].removesuffix('.json')}"


def _date(modified: float) -> str:
    return datetime.fromtimestamp(modified, UTC).strftime("%Y-%m-%d %H:%M")
