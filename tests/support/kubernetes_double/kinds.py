"""The kinds of this cluster, and how a path and a query name their objects."""

import re
from collections.abc import Mapping
from dataclasses import dataclass

from support.kubernetes_double.answers import ApiError, no_such_path


@dataclass(frozen=True)
class Kind:
    """One row of the output of ``kubectl api-resources``."""

    plural: str
    kind: str
    group: str = ""
    version: str = "v1"
    namespaced: bool = True
    short: tuple[str, ...] = ()

    @property
    def api_version(self) -> str:
        return f"{self.group}/{self.version}" if self.group else self.version


PODS = Kind("pods", "Pod", short=("po",))
NAMESPACES = Kind("namespaces", "Namespace", namespaced=False, short=("ns",))
EVENTS = Kind("events", "Event", short=("ev",))
CONFIGMAPS = Kind("configmaps", "ConfigMap", short=("cm",))
SECRETS = Kind("secrets", "Secret")
QUOTAS = Kind("resourcequotas", "ResourceQuota", short=("quota",))
REVIEWS = Kind(
    "selfsubjectaccessreviews",
    "SelfSubjectAccessReview",
    group="authorization.k8s.io",
    namespaced=False,
)
KINDS = (
    PODS,
    NAMESPACES,
    EVENTS,
    CONFIGMAPS,
    SECRETS,
    Kind("services", "Service", short=("svc",)),
    Kind("networkpolicies", "NetworkPolicy", group="networking.k8s.io", short=("netpol",)),
    QUOTAS,
    REVIEWS,
)


def kueue(version: str) -> tuple[Kind, ...]:
    """Kinds that only clusters with Kueue have; none without a version."""
    kinds = ("Workload", "LocalQueue") if version else ()
    return tuple(Kind(f"{kind.lower()}s", kind, "kueue.x-k8s.io", version) for kind in kinds)


_REQUIREMENT = re.compile(r"\s*(?P<key>[^\s!=,()]+)\s+(?P<op>in|notin)\s*\((?P<values>[^)]*)\)\s*")


@dataclass(frozen=True)
class Requirement:
    """One part of a label selector."""

    key: str
    values: frozenset[str] | None  # None: any value, as long as the key exists
    wanted: bool = True

    def admits(self, labels: Mapping[str, str]) -> bool:
        value = labels.get(self.key)
        there = value is not None if self.values is None else value in self.values
        return there is self.wanted


Selector = tuple[Requirement, ...]


def read_selector(text: str) -> Selector:
    """A label selector, parsed from the query parameter ``labelSelector``."""
    found: list[Requirement] = []
    for part in re.split(r",(?![^(]*\))", text) if text else ():
        matched = _REQUIREMENT.fullmatch(part)
        if matched:
            values = frozenset(value.strip() for value in matched["values"].split(","))
            found.append(Requirement(matched["key"], values, wanted=matched["op"] == "in"))
        elif "!=" in part:
            key, _, value = part.partition("!=")
            found.append(Requirement(key.strip(), frozenset({value.strip()}), wanted=False))
        elif "=" in part:
            key, _, value = part.replace("==", "=").partition("=")
            found.append(Requirement(key.strip(), frozenset({value.strip()})))
        elif part.strip():
            key = part.strip()
            found.append(Requirement(key.lstrip("!"), None, wanted=not key.startswith("!")))
        else:
            raise ApiError(400, "found ',', expected: identifier after ','")
    return tuple(found)


#: Fields by which objects can be selected, besides their names.
_FIELDS = {
    "pods": {"spec.nodeName", "spec.restartPolicy", "status.phase", "status.podIP"},
    "events": {
        *(f"involvedObject.{each}" for each in ("kind", "namespace", "name", "uid", "apiVersion")),
        "reason",
        "type",
        "source",
    },
}


def read_fields(kind: Kind, text: str) -> dict[str, str]:
    """A field selector; only equality is supported here."""
    if "!=" in text:
        raise ApiError(400, f"the double knows no inequality of fields: {text}")
    pairs = (part.replace("==", "=").partition("=") for part in text.split(",") if part)
    found = {key: value for key, _, value in pairs}
    known = {"metadata.name", "metadata.namespace"} | _FIELDS.get(kind.plural, set())
    for key in found.keys() - known:
        raise ApiError(400, f"field label not supported: {key}")
    return found


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
