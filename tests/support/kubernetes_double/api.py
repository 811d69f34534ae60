"""What each verb does to the objects; this module does not depend on HTTP."""

import copy
import json
from base64 import b64encode
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any
from uuid import uuid4

from support.kubernetes_double import answers
from support.kubernetes_double.deletion import Deletion
from support.kubernetes_double.objects import (
    NAMESPACES,
    PODS,
    QUOTAS,
    REVIEWS,
    SECRETS,
    Kind,
    Manifest,
    Objects,
    Selection,
    Stored,
    timestamp,
)

USER = "system:serviceaccount:default:aerotrain"

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
    return _VERBS[method]


def is_true(text: str) -> bool:
    return text.lower() in ("1", "true")


def read_selection(target: Target, query: Mapping[str, str]) -> Selection:
    """The selection of a list or watch; selectors know equality only."""
    labels, fields = (
        dict(part.split("=", 1) for part in query.get(selector, "").split(",") if part)
        for selector in ("labelSelector", "fieldSelector")
    )
    return Selection(target.kind, target.namespace, labels, fields)


class Access:
    """The bearer token, verbs that were revoked, and quotas."""

    def __init__(self, token: str = "") -> None:
        self.token = token
        self.denied: set[tuple[str, str]] = set()

    def check(
        self, authorization: str, verb: str, kind: Kind, resource: str, namespace: str
    ) -> None:
        """Reject an invalid token, and what the user may not do.

        ``resource`` includes the subresource, as in ``pods/log``.
        """
        if self.token and authorization != f"Bearer {self.token}":
            raise answers.ApiError(401, "Unauthorized")
        if (verb, resource) in self.denied:
            raise answers.forbidden(USER, verb, resource, kind.group, namespace)

    def review(self, given: Manifest) -> Manifest:
        """The response to a SelfSubjectAccessReview."""
        asked = given["spec"]["resourceAttributes"]
        resource = "/".join(filter(None, (asked.get("resource"), asked.get("subresource"))))
        status: dict[str, Any] = {"allowed": (asked.get("verb"), resource) not in self.denied}
        return {**given, "metadata": {}, "status": status}


def check_quota(manifest: Manifest, objects: Objects) -> None:
    """Reject a pod beyond the number of pods of one of the namespace's quotas."""
    namespace, name = manifest["metadata"]["namespace"], manifest["metadata"]["name"]
    for quota in objects.select(Selection(QUOTAS, namespace)):
        limit = quota.manifest()["spec"]["hard"]["pods"]
        used = len(objects.select(Selection(PODS, namespace)))
        if used >= int(limit):
            raise answers.ApiError(
                403,
                f'pods "{name}" is forbidden: exceeded quota: {quota.name}, requested: pods=1, '
                f"used: pods={used}, limited: pods={limit}",
            )


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
        raise answers.no_such_path()

    def _found(self, target: Target) -> Stored:
        found = self._objects.find(target.kind, target.namespace, target.name)
        if found is None:
            raise answers.not_found(target.kind.plural, target.name)
        return found

    def _create(self, target: Target, body: Manifest, *, dry: bool) -> Answer:
        manifest = prepare(target.kind, target.namespace, body, self._objects)
        if target.kind is PODS:
            check_quota(manifest, self._objects)
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
            raise answers.modified(stored.kind.plural, name, "metadata.uid is immutable")
        before = stored.manifest()
        after = merge(before, body)
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
        success = b'{"kind":"Status","apiVersion":"v1","metadata":{},"status":"Success"}'
        return 200, stored.whole() if stored.kind is PODS else success


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


def prepare(kind: Kind, namespace: str, given: Manifest, objects: Objects) -> Manifest:
    """The new object as it is stored.

    Raises:
        ApiError: it exists already, or its namespace does not exist.
    """
    manifest = copy.deepcopy(given)
    metadata = manifest.setdefault("metadata", {})
    if kind.namespaced:
        metadata["namespace"] = namespace
        home = objects.find(NAMESPACES, "", namespace)
        if home is None:
            raise answers.not_found("namespaces", namespace)
    name = metadata["name"]
    if objects.find(kind, metadata.get("namespace", ""), name):
        raise answers.already_exists(kind.plural, name)
    metadata |= {"uid": str(uuid4()), "creationTimestamp": timestamp()}
    metadata.pop("resourceVersion", None)
    _fill(kind, manifest)
    return manifest


def _fill(kind: Kind, manifest: Manifest) -> None:
    """Fill in the fields that the server adds."""
    if kind is PODS:
        manifest["spec"] = {**_POD_DEFAULTS, **manifest["spec"]}
        for container in manifest["spec"]["containers"]:
            for key, value in _CONTAINER_DEFAULTS.items():
                container.setdefault(key, value)
        manifest["status"] = {"phase": "Pending"}
    elif kind is SECRETS:
        written = manifest.pop("stringData", None) or {}
        encoded = {key: b64encode(text.encode()).decode() for key, text in written.items()}
        manifest["data"] = {**(manifest.get("data") or {}), **encoded}
    elif kind.plural == "resourcequotas":
        manifest["status"] = {"hard": manifest["spec"].get("hard", {}), "used": {}}


_POD_DEFAULTS: dict[str, Any] = {
    "restartPolicy": "Always",
    "terminationGracePeriodSeconds": 30,
    "serviceAccountName": "default",
}
_CONTAINER_DEFAULTS = {"imagePullPolicy": "IfNotPresent", "terminationMessagePolicy": "File"}
