"""What each verb does to the objects; this module does not depend on HTTP."""

import copy
import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from support.kubernetes_double import admission, answers
from support.kubernetes_double.access import Access, check_quota
from support.kubernetes_double.deletion import Deletion
from support.kubernetes_double.objects import (
    PODS,
    REVIEWS,
    Kind,
    Manifest,
    Objects,
    Selection,
    Stored,
    timestamp,
)

#: Code and body of a response.
Answer = tuple[int, bytes]

_VERBS = {"POST": "create", "PATCH": "patch", "DELETE": "delete"}


@dataclass(frozen=True)
class Target:
    """The target of a path: a collection if ``name`` is empty."""

    verb: str
    kind: Kind
    namespace: str
    name: str
    subresource: str

    @property
    def resource(self) -> str:
        return f"{self.kind.plural}/{self.subresource}" if self.subresource else self.kind.plural


def read_path(method: str, path: str, query: Mapping[str, str], kinds: tuple[Kind, ...]) -> Target:
    """The target of a request.

    Raises:
        ApiError: the path does not exist here.
    """
    start, *parts = path.strip("/").split("/")
    group, version, *rest = [*(parts if start == "apis" else ["", *parts]), "", ""]
    namespace = ""
    if rest[0] == "namespaces" and rest[2]:
        namespace, rest = rest[1], rest[2:]
    plural, name, subresource, *_ = [*rest, "", "", ""]
    for kind in kinds:
        if (kind.group, kind.version, kind.plural) == (group, version, plural):
            return Target(_verb(method, name, query), kind, namespace, name, subresource)
    raise answers.no_such_path()


def _verb(method: str, name: str, query: Mapping[str, str]) -> str:
    if method == "GET":
        reads = "get" if name else "list"
        return "watch" if is_true(query.get("watch", "")) else reads
    return "deletecollection" if method == "DELETE" and not name else _VERBS[method]


def is_true(text: str) -> bool:
    return text.lower() in ("1", "true")


def read_selection(target: Target, query: Mapping[str, str]) -> Selection:
    """The selection of a list or watch; selectors know equality only."""
    labels, fields = (
        dict(part.split("=", 1) for part in query.get(selector, "").split(",") if part)
        for selector in ("labelSelector", "fieldSelector")
    )
    return Selection(target.kind, target.namespace, labels, fields)


class Api:
    """The API of the cluster: reads and changes its objects."""

    def __init__(self, objects: Objects, access: Access, deletion: Deletion) -> None:
        self._objects = objects
        self._access = access
        self._deletion = deletion
        #: Called with each new pod after it is stored.
        self.run_pod: Callable[[Stored], None] = lambda _: None

    def answer(self, target: Target, query: Mapping[str, str], body: Manifest) -> Answer:
        """Carry out the request.

        Raises:
            ApiError: the request cannot be carried out.
        """
        if target.kind is REVIEWS:
            return 201, json.dumps(self._access.review(body)).encode()
        if target.subresource == "eviction":
            return self._evict(self._found(target), body)
        match target.verb:
            case "create":
                return self._create(target, body, dry=query.get("dryRun") == "All")
            case "get":
                return 200, self._found(target).whole()
            case "list":
                return 200, self._list(read_selection(target, query), query)
            case "patch":
                return 200, self._patch(self._found(target), body)
            case "delete":
                return self._delete(self._found(target), {**query, **body})
            case "deletecollection":
                for stored in self._objects.select(read_selection(target, query)):
                    self._deletion.delete(stored, {})
                return 200, _success()
        raise answers.no_such_path()

    def _found(self, target: Target) -> Stored:
        found = self._objects.find(target.kind, target.namespace, target.name)
        if found is None:
            raise answers.not_found(target.kind.plural, target.name)
        return found

    def _create(self, target: Target, body: Manifest, *, dry: bool) -> Answer:
        manifest = admission.prepare(target.kind, target.namespace, body, self._objects)
        check_quota(target.kind, manifest, self._objects)
        if dry:
            whole = {"kind": target.kind.kind, "apiVersion": target.kind.api_version, **manifest}
            return 201, json.dumps(whole).encode()
        stored = self._objects.put(target.kind, manifest)
        answer = stored.whole()
        if target.kind is PODS:
            self.run_pod(stored)
        return 201, answer

    def _list(self, selection: Selection, query: Mapping[str, str]) -> bytes:
        """One page; the token of the next one is the last namespace and name of this one."""
        found = self._objects.select(selection)
        metadata: dict[str, Any] = {"resourceVersion": str(self._objects.version)}
        if token := query.get("continue"):
            after = tuple(token.split("/"))
            found = [stored for stored in found if (stored.namespace, stored.name) > after]
        limit = int(query.get("limit") or 0)
        if 0 < limit < len(found):
            found = found[:limit]
            metadata["continue"] = f"{found[-1].namespace}/{found[-1].name}"
        kind = selection.kind
        head = {"kind": f"{kind.kind}List", "apiVersion": kind.api_version, "metadata": metadata}
        opening = json.dumps(head).encode()[:-1] + b',"items":['
        return opening + b",".join(stored.encoded for stored in found) + b"]}"

    def _patch(self, stored: Stored, body: Manifest) -> bytes:
        given, name = body.get("metadata") or {}, stored.name
        if given.get("resourceVersion", str(stored.version)) != str(stored.version):
            raise answers.modified(stored.kind.plural, name, "the object has been modified")
        if given.get("uid", stored.uid) != stored.uid:
            raise answers.invalid(stored.kind.kind, name, "metadata.uid", "field is immutable")
        before = stored.manifest()
        after = merge(before, body)
        if stored.kind is PODS and after["spec"] != before["spec"]:
            raise answers.invalid("Pod", name, "spec", "Forbidden: pod updates may not change it")
        admission.check(stored.kind, after)
        if after == before:  # a change without effect makes no new version
            return stored.whole()
        newer = self._objects.put(stored.kind, after)
        # A pod is removed only after its node has reported the end of its containers.
        grace = after["metadata"].get("deletionGracePeriodSeconds")
        if newer.deleting and (newer.kind is not PODS or grace == 0):
            self._objects.remove(newer)
        return newer.whole()

    def _delete(self, stored: Stored, options: Manifest) -> Answer:
        self._deletion.delete(stored, options)
        return 200, stored.whole() if stored.kind is PODS else _success()

    def _evict(self, stored: Stored, body: Manifest) -> Answer:
        """Evict a pod, as the drain of a node does."""
        condition = {
            "type": "DisruptionTarget",
            "status": "True",
            "reason": "EvictionByEvictionAPI",
            "message": "Eviction API: evicting",
            "lastTransitionTime": timestamp(),
        }
        marked = self._objects.change(
            stored, lambda it: it["status"].setdefault("conditions", []).append(condition)
        )
        self._deletion.delete(marked or stored, body.get("deleteOptions") or {})
        return 201, _success()


def _success() -> bytes:
    return b'{"kind":"Status","apiVersion":"v1","metadata":{},"status":"Success"}'


def merge(before: Any, patch: Any) -> Any:
    """A JSON merge patch, RFC 7386."""
    if not isinstance(patch, dict):
        return copy.deepcopy(patch)
    merged = dict(before) if isinstance(before, dict) else {}
    for key, value in patch.items():
        if value is None:
            merged.pop(key, None)
        else:
            merged[key] = merge(merged.get(key), value)
    return merged
