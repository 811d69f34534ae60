"""Pod templates: what a platform team, or a role of a job, adds to the pods.

A template is a Pod in Kubernetes' own format; all fields except the reserved ones are used. Its
container ``replica``, or else its first, is the one that trains; others are side-cars.
"""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import yaml

from aerotrain.contract.errors import SpecError
from aerotrain.contract.replicas import is_reserved
from aerotrain_airflow.kubernetes.identity import CONTAINER

Template = Mapping[str, Any]

#: How lists are merged: by the field that names their items. Items of ``containers`` are merged; in
#: other lists the later item replaces the earlier. Lists not named here are replaced.
_NAMED_BY = {
    "containers": "name",
    "initContainers": "name",
    "volumes": "name",
    "volumeMounts": "mountPath",
    "volumeDevices": "devicePath",
    "env": "name",
    "ports": "containerPort",
    "imagePullSecrets": "name",
    "topologySpreadConstraints": "topologyKey",
    "hostAliases": "ip",
    "resourceClaims": "name",
}
_MERGED = ("containers", "initContainers")
_APPENDED = ("tolerations", "envFrom")

#: What a template may not set, by its path, and why.
_RESERVED_IN_POD = {
    "metadata/namespace": "is set in [aerotrain] namespace",
    "metadata/finalizers": "would keep pods after their job",
    "spec/hostNetwork": "would open TensorFlow's port to other hosts",
    "spec/restartPolicy": "is Never, because the launcher decides on restarts",
    "spec/activeDeadlineSeconds": "comes from the deadlines of the job",
    **dict.fromkeys(
        ("metadata/name", "metadata/generateName", "metadata/ownerReferences"),
        "ties the pods to their job",
    ),
    **dict.fromkeys(
        ("spec/hostname", "spec/subdomain", "spec/setHostnameAsFQDN", "spec/hostnameOverride"),
        "is how replicas find each other",
    ),
}
_RESERVED_IN_CONTAINER = {
    **dict.fromkeys(("command", "args", "workingDir"), "is how a replica is started"),
    **dict.fromkeys(
        ("terminationMessagePath", "terminationMessagePolicy"),
        "is where a replica writes its termination message",
    ),
    **dict.fromkeys(
        (
            "resources/requests/cpu",
            "resources/requests/memory",
            "resources/limits/memory",
            "resources/limits/nvidia.com/gpu",
            "resources/limits/google.com/tpu",
        ),
        "comes from the resources of the role's replica",
    ),
}
_RESERVED_LABELS = ("app.kubernetes.io/name", "app.kubernetes.io/managed-by")


def read_template(path: Path) -> Template:
    """The pod template in that file.

    Raises:
        SpecError: it is not the YAML of one Pod; ``checked`` checks what it sets.
    """
    try:
        read = yaml.safe_load(path.read_text())
    except (OSError, UnicodeDecodeError, yaml.YAMLError) as error:
        raise SpecError(
            f"the pod template {path} cannot be read: {error}; it should be the YAML of one Pod"
        ) from error
    if not isinstance(read, Mapping):
        raise SpecError(f"the pod template {path} should be the YAML of one Pod, got {read!r}")
    return read


def checked(template: Template, where: str) -> dict[str, Any]:
    """``template``, with its training container first and under the reserved name.

    ``where`` identifies the template in errors, such as ``the pod template of worker``.

    Raises:
        SpecError: it is not a Pod, or sets a reserved field.
    """
    if template.get("kind", "Pod") != "Pod" or template.get("apiVersion", "v1") != "v1":
        raise SpecError(
            f"{where} should be of kind Pod in v1, got {template.get('kind')} in "
            f"{template.get('apiVersion')}; give the Pod alone"
        )
    try:
        json.dumps(template)
    except (TypeError, ValueError) as error:
        raise SpecError(
            f"{where} holds what no JSON can: {error}; put dates and the like in quotes"
        ) from error
    for key, value in template.items():
        if key not in ("apiVersion", "kind", "metadata", "spec") and value:
            raise SpecError(f"{where} has {key!r}, which no Pod has; give it metadata and spec")
    whole = merge({"metadata": {"labels": {}, "annotations": {}}, "spec": {}}, template, where)
    _check_reserved(whole, _RESERVED_IN_POD, where)
    for kind in ("labels", "annotations"):
        for name in whole.get("metadata", {}).get(kind, ()):
            if str(name).startswith("aerotrain/") or name in _RESERVED_LABELS:
                raise SpecError(
                    f"{where} sets metadata.{kind} {name!r}, which the launcher sets; leave it out"
                )
    metadata, spec = template.get("metadata") or {}, template.get("spec") or {}
    kept = {key: metadata[key] for key in ("labels", "annotations") if key in metadata}
    if containers := spec.get("containers"):
        own = next((each for each in containers if each["name"] == CONTAINER), containers[0])
        here = f"{where}, in its container {own['name']!r},"
        _check_reserved(own, _RESERVED_IN_CONTAINER, here)
        for variable in own.get("env") or ():
            if is_reserved(variable["name"]):
                raise SpecError(
                    f"{here} sets the variable {variable['name']}, which the launcher sets for "
                    "each replica; leave it out"
                )
        others = (each for each in containers if each is not own)
        spec = {**spec, "containers": [{**own, "name": CONTAINER}, *others]}
    return {"metadata": kept, "spec": spec}


def _check_reserved(part: Template, reserved: Mapping[str, str], where: str) -> None:
    for path, why in reserved.items():
        value: Any = part
        keys = path.split("/", 2)
        for key in keys:
            value = value.get(key) if isinstance(value, Mapping) else None
        if value is not None and (path, value) != ("spec/restartPolicy", "Never"):
            raise SpecError(
                f"{where} sets {'.'.join(keys)} to {value!r}, which {why}; leave it out"
            )


def merge(base: Template, over: Template, where: str = "a pod template") -> dict[str, Any]:
    """``base`` with ``over`` on top; fields that ``over`` sets to null are removed.

    Neither is changed, but the result shares parts with both.

    Raises:
        SpecError: they differ in the type of a field, or an item of a list has no name.
    """
    merged = dict(base)
    for key, value in over.items():
        below = merged.get(key)
        if value is None:
            merged.pop(key, None)
            continue
        expected = [] if key in _NAMED_BY else below
        for kind in (Mapping, list):
            if expected is not None and isinstance(value, kind) != isinstance(expected, kind):
                raise SpecError(f"{where} has {key} {value!r}; write it as Kubernetes does")
        if isinstance(value, Mapping):
            merged[key] = merge(below or {}, value, where)
        elif isinstance(value, list):
            merged[key] = _merged_list(key, below or [], value, where)
        else:
            merged[key] = value
    return merged


def _merged_list(key: str, base: list[Any], over: list[Any], where: str) -> list[Any]:
    if key in _APPENDED:
        return [*base, *(each for each in over if each not in base)]
    if key not in _NAMED_BY:
        return list(over)
    by = _NAMED_BY[key]
    merged = {each[by]: each for each in base}
    for each in over:
        if not isinstance(each, Mapping) or by not in each:
            raise SpecError(f"{where} has {key} without {by}: {each!r}; give it one")
        below = merged.get(each[by], {}) if key in _MERGED else {}
        merged[each[by]] = merge(below, each, where)
    return list(merged.values())
