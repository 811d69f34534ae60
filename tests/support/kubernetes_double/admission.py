"""What the API server validates and fills in before it stores an object."""

import copy
import re
from base64 import b64encode
from datetime import UTC, datetime
from typing import Any
from uuid import uuid4

from support.kubernetes_double import answers
from support.kubernetes_double.kinds import (
    CONFIGMAPS,
    EVENTS,
    NAMESPACES,
    PODS,
    QUOTAS,
    SECRETS,
    Kind,
)
from support.kubernetes_double.objects import Manifest, Objects

_LABEL = re.compile(r"[a-z0-9]([-a-z0-9]*[a-z0-9])?")
_SERVICE = re.compile(r"[a-z]([-a-z0-9]*[a-z0-9])?")
_SUBDOMAIN = re.compile(r"[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*")
_LABEL_VALUE = re.compile(r"(([A-Za-z0-9][-A-Za-z0-9_.]*)?[A-Za-z0-9])?")
_LABEL_RULE = (
    "a lowercase RFC 1123 label must consist of lower case alphanumeric characters or '-', and "
    "must start and end with an alphanumeric character (e.g. 'my-name',  or '123-abc', regex used "
    "for validation is '[a-z0-9]([-a-z0-9]*[a-z0-9])?')"
)
_SUBDOMAIN_RULE = (
    "a lowercase RFC 1123 subdomain must consist of lower case alphanumeric characters, '-' or "
    "'.', and must start and end with an alphanumeric character (e.g. 'example.com', regex used "
    "for validation is '[a-z0-9]([-a-z0-9]*[a-z0-9])?(\\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*')"
)
_SERVICE_RULE = (
    "a DNS-1035 label must consist of lower case alphanumeric characters or '-', start with an "
    "alphabetic character, and end with an alphanumeric character (e.g. 'my-name',  or 'abc-123', "
    "regex used for validation is '[a-z]([-a-z0-9]*[a-z0-9])?')"
)
_VALUE_RULE = (
    "a valid label must be an empty string or consist of alphanumeric characters, '-', '_' or "
    "'.', and must start and end with an alphanumeric character (e.g. 'MyValue',  or 'my_value',  "
    "or '12345', regex used for validation is '(([A-Za-z0-9][-A-Za-z0-9_.]*)?[A-Za-z0-9])?')"
)

#: Most bytes of a ConfigMap.
_LONGEST_DATA = 2**20

Cause = tuple[str, str, str]


def prepare(kind: Kind, namespace: str, given: Manifest, objects: Objects) -> Manifest:
    """The new object as it is stored.

    Raises:
        ApiError: it is not valid, exists already, or its namespace does not exist.
    """
    manifest = copy.deepcopy(given)
    if manifest.get("kind", kind.kind) != kind.kind:
        raise answers.ApiError(
            400, f'{manifest["kind"]} in version "v1" cannot be handled as a {kind.kind}'
        )
    metadata = manifest.setdefault("metadata", {})
    if kind.namespaced:
        if metadata.setdefault("namespace", namespace) != namespace:
            raise answers.ApiError(
                400,
                "the namespace of the provided object does not match the namespace sent on the "
                "request",
            )
        home = objects.find(NAMESPACES, "", namespace)
        if home is None:
            raise answers.not_found("namespaces", namespace)
        if home.deleting:
            raise answers.ApiError(
                403,
                f'{kind.plural} "{metadata.get("name")}" is forbidden: unable to create new '
                f"content in namespace {namespace} because it is being terminated",
            )
    if "name" not in metadata and "generateName" in metadata:
        metadata["name"] = metadata["generateName"] + uuid4().hex[:5]
    check(kind, manifest)
    metadata |= {"uid": str(uuid4()), "creationTimestamp": timestamp()}
    metadata.pop("resourceVersion", None)
    _fill(kind, manifest)
    existing = objects.find(kind, metadata.get("namespace", ""), metadata["name"])
    if existing:
        raise answers.already_exists(kind.plural, metadata["name"], existing.deleting)
    metadata["managedFields"] = [managed("OpenAPI-Generator", kind, manifest)]
    return manifest


def check(kind: Kind, manifest: Manifest) -> None:
    """Reject names and labels that a real cluster rejects."""
    metadata = manifest["metadata"]
    name = metadata.get("name", "")
    causes: list[Cause] = []
    if not name:
        causes.append(
            (
                "metadata.name",
                "FieldValueRequired",
                "Required value: name or generateName is required",
            )
        )
    elif kind.plural == "services":
        # Kubernetes 1.36 allows a digit as its first character; versions before 1.34 do not.
        causes += _name("metadata.name", name, 63, _SERVICE, _SERVICE_RULE)
    elif kind is NAMESPACES:
        causes += _name("metadata.name", name, 63, _LABEL, _LABEL_RULE)
    else:
        causes += _name("metadata.name", name, 253, _SUBDOMAIN, _SUBDOMAIN_RULE)
    for key, value in (metadata.get("labels") or {}).items():
        causes += _label("metadata.labels", key, value)
    if kind is PODS:
        causes += _pod(manifest)
    data = manifest.get("data") or {}
    if kind is CONFIGMAPS and sum(map(len, data.values())) > _LONGEST_DATA:
        causes.append(
            ("[]", "FieldValueTooLong", f"Too long: may not be more than {_LONGEST_DATA} bytes")
        )
    if causes:
        raise answers.invalid(kind.kind, name, causes)


def _pod(manifest: Manifest) -> list[Cause]:
    spec = manifest.get("spec") or {}
    causes: list[Cause] = []
    for field in ("hostname", "subdomain"):
        if spec.get(field):
            causes += _name(f"spec.{field}", spec[field], 63, _LABEL, _LABEL_RULE)
    if not spec.get("containers"):
        causes.append(("spec.containers", "FieldValueRequired", "Required value"))
    for index, container in enumerate(spec.get("containers") or ()):
        if not container.get("image"):
            where = f"spec.containers[{index}].image"
            causes.append((where, "FieldValueRequired", "Required value"))
        for variable in container.get("env") or ():
            if not isinstance(variable.get("value", ""), str):
                raise answers.ApiError(
                    400,
                    'Pod in version "v1" cannot be handled as a Pod: json: cannot unmarshal number '
                    "into Go struct field EnvVar.spec.containers.env.value of type string",
                )
    return causes


def _name(field: str, name: str, length: int, pattern: re.Pattern[str], rule: str) -> list[Cause]:
    sentences = []
    unit = "bytes" if field == "metadata.name" else "characters"
    if len(name) > length:
        sentences.append(f"must be no more than {length} {unit}")
    if not pattern.fullmatch(name):
        sentences.append(rule)
    return [(field, "FieldValueInvalid", f'Invalid value: "{name}": {each}') for each in sentences]


def _label(field: str, key: str, value: Any) -> list[Cause]:
    if not isinstance(value, str):
        raise answers.ApiError(400, f"cannot unmarshal {value!r} of {field} into a string")
    found = [("", each) for each in (key.rpartition("/")[2],) if not _LABEL_VALUE.fullmatch(each)]
    causes = [(field, "FieldValueInvalid", f'Invalid value: "{key}": {_VALUE_RULE}') for _ in found]
    if len(value) > 63:
        message = f'Invalid value: "{value}": must be no more than 63 bytes'
        causes.append((field, "FieldValueInvalid", message))
    elif not _LABEL_VALUE.fullmatch(value):
        causes.append((field, "FieldValueInvalid", f'Invalid value: "{value}": {_VALUE_RULE}'))
    return causes


def _fill(kind: Kind, manifest: Manifest) -> None:
    """Fill in the fields that the server adds."""
    if kind is PODS:
        manifest.setdefault("spec", {})
        for key, value in _POD_DEFAULTS.items():
            manifest["spec"].setdefault(key, copy.copy(value))
        for container in manifest["spec"]["containers"]:
            container.setdefault("imagePullPolicy", "IfNotPresent")
            container.setdefault("terminationMessagePath", "/dev/termination-log")
            container.setdefault("terminationMessagePolicy", "File")
            container.setdefault("resources", {})
        asked = any(each["resources"] for each in manifest["spec"]["containers"])
        manifest["metadata"]["generation"] = 1
        manifest["status"] = {
            "phase": "Pending",
            "qosClass": "Burstable" if asked else "BestEffort",
        }
    elif kind is NAMESPACES:
        manifest["spec"] = {"finalizers": ["kubernetes"]}
        manifest["status"] = {"phase": "Active"}
    elif kind is QUOTAS:
        manifest["status"] = {"hard": manifest["spec"].get("hard", {}), "used": {}}
    elif kind is SECRETS:
        written = manifest.pop("stringData", None) or {}
        encoded = {key: b64encode(text.encode()).decode() for key, text in written.items()}
        manifest["data"] = {**(manifest.get("data") or {}), **encoded}
        manifest.setdefault("type", "Opaque")
    elif kind.plural == "services":
        spec = manifest.setdefault("spec", {})
        spec.setdefault("clusterIP", "10.43.0.7")
        spec.setdefault("type", "ClusterIP")
        manifest["status"] = {"loadBalancer": {}}


_POD_DEFAULTS: dict[str, Any] = {
    "restartPolicy": "Always",
    "terminationGracePeriodSeconds": 30,
    "dnsPolicy": "ClusterFirst",
    "serviceAccountName": "default",
    "serviceAccount": "default",
    "securityContext": {},
    "schedulerName": "default-scheduler",
    "enableServiceLinks": True,
    "preemptionPolicy": "PreemptLowerPriority",
    "priority": 0,
    "tolerations": [
        {"key": key, "operator": "Exists", "effect": "NoExecute", "tolerationSeconds": 300}
        for key in ("node.kubernetes.io/not-ready", "node.kubernetes.io/unreachable")
    ],
}


def managed(manager: str, kind: Kind, manifest: Manifest) -> Manifest:
    """Who set which field: this makes the JSON of a real pod half as long again."""
    given = {key: value for key, value in manifest.items() if key not in ("kind", "apiVersion")}
    metadata = manifest.get("metadata") or {}
    given["metadata"] = {
        key: metadata[key]
        for key in ("labels", "annotations", "ownerReferences")
        if key in metadata
    }
    if manager != "kubelet":
        given.pop("status", None)
    return {
        "manager": manager,
        "operation": "Update",
        "apiVersion": kind.api_version,
        "time": timestamp(),
        "fieldsType": "FieldsV1",
        "fieldsV1": {} if kind is EVENTS else _fields(given),
    }


def _fields(value: Any) -> Any:
    if isinstance(value, dict):
        return {f"f:{key}": _fields(each) for key, each in value.items()}
    if isinstance(value, list) and value and isinstance(value[0], dict):
        key = "name" if "name" in value[0] else "type"
        if key in value[0]:
            named = {f'k:{{"{key}":"{each[key]}"}}': {".": {}, **_fields(each)} for each in value}
            return {".": {}, **named}
    return {}


def timestamp(seconds: float | None = None) -> str:
    """A moment in the format of ``metav1.Time``: whole seconds, UTC."""
    moment = datetime.now(UTC) if seconds is None else datetime.fromtimestamp(seconds, UTC)
    return moment.strftime("%Y-%m-%dT%H:%M:%SZ")
