"""Parses the path of a request."""

from collections.abc import Mapping
from dataclasses import dataclass

from support.kubernetes_double.answers import no_such_path
from support.kubernetes_double.kinds import Kind

_VERBS = {"POST": "create", "PUT": "update", "PATCH": "patch", "DELETE": "delete"}


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
    parts = path.strip("/").split("/")
    if parts[:2] == ["api", "v1"]:
        group, version, rest = "", "v1", parts[2:]
    elif parts[0] == "apis" and len(parts) > 3:
        group, version, rest = parts[1], parts[2], parts[3:]
    else:
        raise no_such_path()
    namespace = ""
    if rest and rest[0] == "namespaces" and len(rest) > 2:
        namespace, rest = rest[1], rest[2:]
    if not rest or len(rest) > 3:
        raise no_such_path()
    plural, name, subresource = [*rest, "", ""][:3]
    for kind in kinds:
        if (kind.group, kind.version, kind.plural) == (group, version, plural):
            return Target(_verb(method, name, query), kind, namespace, name, subresource)
    raise no_such_path()


def _verb(method: str, name: str, query: Mapping[str, str]) -> str:
    if method == "GET":
        if is_true(query.get("watch", "")):
            return "watch"
        return "get" if name else "list"
    if method == "DELETE" and not name:
        return "deletecollection"
    return _VERBS[method]


def is_true(text: str) -> bool:
    return text.lower() in ("1", "true")


def discovery(path: str, kinds: tuple[Kind, ...]) -> dict[str, object] | None:
    """The discovery documents, from which a client such as kubectl learns the kinds."""
    groups = sorted({kind.group for kind in kinds if kind.group})
    match path.strip("/").split("/"):
        case ["version"]:
            return {"major": "1", "minor": "36", "gitVersion": "v1.36.0-double"}
        case ["api"]:
            return {"kind": "APIVersions", "versions": ["v1"]}
        case ["apis"]:
            listed = [_group(group, kinds) for group in groups]
            return {"kind": "APIGroupList", "apiVersion": "v1", "groups": listed}
        case ["api", "v1"]:
            return _resources("", "v1", kinds)
        case ["apis", group] if group in groups:
            return {"kind": "APIGroup", "apiVersion": "v1", **_group(group, kinds)}
        case ["apis", group, version] if group in groups:
            return _resources(group, version, kinds)
    return None


def _group(group: str, kinds: tuple[Kind, ...]) -> dict[str, object]:
    versions = [
        {"groupVersion": kind.api_version, "version": kind.version}
        for kind in kinds
        if kind.group == group
    ]
    return {"name": group, "versions": versions, "preferredVersion": versions[0]}


def _resources(group: str, version: str, kinds: tuple[Kind, ...]) -> dict[str, object]:
    listed = [
        {
            "name": kind.plural,
            "singularName": kind.kind.lower(),
            "namespaced": kind.namespaced,
            "kind": kind.kind,
            "shortNames": list(kind.short),
            "verbs": ["create", "delete", "get", "list", "patch", "update", "watch"],
        }
        for kind in kinds
        if (kind.group, kind.version) == (group, version)
    ]
    return {
        "kind": "APIResourceList",
        "apiVersion": "v1",
        "groupVersion": f"{group}/{version}" if group else version,
        "resources": listed,
    }
