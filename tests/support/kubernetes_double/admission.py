"""What the API server validates and fills in before it stores an object."""

import copy
import re
from base64 import b64encode
from collections.abc import Iterator
from typing import Any
from uuid import uuid4

from support.kubernetes_double import answers
from support.kubernetes_double.objects import (
    CONFIGMAPS,
    NAMESPACES,
    PODS,
    SECRETS,
    Kind,
    Manifest,
    Objects,
    timestamp,
)

_LABEL = re.compile(r"[a-z0-9]([-a-z0-9]*[a-z0-9])?")
_SUBDOMAIN = re.compile(r"[a-z0-9]([-.a-z0-9]*[a-z0-9])?")
_LABEL_VALUE = re.compile(r"([A-Za-z0-9]([-A-Za-z0-9_.]*[A-Za-z0-9])?)?")

#: Most bytes of a ConfigMap.
_LONGEST_DATA = 2**20


def prepare(kind: Kind, namespace: str, given: Manifest, objects: Objects) -> Manifest:
    """The new object as it is stored.

    Raises:
        ApiError: it is not valid, exists already, or its namespace does not exist.
    """
    manifest = copy.deepcopy(given)
    metadata = manifest.setdefault("metadata", {})
    if kind.namespaced:
        metadata["namespace"] = namespace
        home = objects.find(NAMESPACES, "", namespace)
        if home is None:
            raise answers.not_found("namespaces", namespace)
    check(kind, manifest)
    name = metadata["name"]
    if objects.find(kind, metadata.get("namespace", ""), name):
        raise answers.already_exists(kind.plural, name)
    metadata |= {"uid": str(uuid4()), "creationTimestamp": timestamp()}
    metadata.pop("resourceVersion", None)
    _fill(kind, manifest)
    return manifest


def check(kind: Kind, manifest: Manifest) -> None:
    """Reject names and labels that a real cluster rejects."""
    for where, text, pattern, length in _names(kind, manifest):
        if len(text) > length or not pattern.fullmatch(text):
            sentence = (
                f'Invalid value: "{text}": it has at most {length} bytes of {pattern.pattern}'
            )
            raise answers.invalid(kind.kind, manifest["metadata"]["name"], where, sentence)
    data = manifest.get("data") or {}
    if kind is CONFIGMAPS and sum(map(len, data.values())) > _LONGEST_DATA:
        sentence = f"Too long: may not be more than {_LONGEST_DATA} bytes"
        raise answers.invalid(kind.kind, manifest["metadata"]["name"], "data", sentence)


def _names(kind: Kind, manifest: Manifest) -> Iterator[tuple[str, str, re.Pattern[str], int]]:
    """Where a name is, the name, its pattern, and its greatest length."""
    metadata, spec = manifest["metadata"], manifest.get("spec") or {}
    is_label = kind.plural in ("services", "namespaces")
    yield "metadata.name", metadata["name"], *((_LABEL, 63) if is_label else (_SUBDOMAIN, 253))
    for key, value in (metadata.get("labels") or {}).items():
        yield f"metadata.labels[{key}]", value, _LABEL_VALUE, 63
    for field in ("hostname", "subdomain") if kind is PODS else ():
        if field in spec:
            yield f"spec.{field}", spec[field], _LABEL, 63


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
