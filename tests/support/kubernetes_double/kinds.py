"""The kinds of this cluster, and how a path and a query name their objects."""

import re
from collections.abc import Mapping
from dataclasses import dataclass

from support.kubernetes_double.answers import ApiError


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

#: Kinds that only clusters with Volcano have.
VOLCANO = Kind("podgroups", "PodGroup", group="scheduling.volcano.sh", version="v1beta1")

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
