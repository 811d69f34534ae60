"""Pod templates: what a platform team, or a role of a job, adds to the pods.

A template is a Pod in Kubernetes' own format; all fields except the reserved ones are used. Its
container ``replica``, or else its first, is the one that trains; others are side-cars.
"""

import json
from collections.abc import Mapping, Sequence
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

_RESOURCES = "comes from the job; give it in the resources of the role's replica"
_NAMES = "is how replicas find each other; leave it out"
_START = "is how a replica is started; leave it out"
_MESSAGE = "is where a replica writes its termination message; leave it out"

#: What a template may not set, by its path, and why.
_RESERVED_IN_POD = {
    "metadata/name": _NAMES,
    "metadata/namespace": "is set in [aerotrain] namespace; leave it out",
    "metadata/generateName": _NAMES,
    "metadata/ownerReferences": "ties the pods to their job; leave it out",
    "metadata/finalizers": "would keep pods after their job; leave it out",
    "spec/hostname": _NAMES,
    "spec/subdomain": _NAMES,
    "spec/setHostnameAsFQDN": _NAMES,
    "spec/hostnameOverride": _NAMES,
    "spec/hostNetwork": "would open TensorFlow's port to other hosts; leave it out",
    "spec/restartPolicy": "is Never, because the launcher decides on restarts; leave it out",
    "spec/activeDeadlineSeconds": "comes from the job; set the job's deadlines instead",
}
_RESERVED_IN_CONTAINER = {
    "command": _START,
    "args": _START,
    "workingDir": _START,
    "terminationMessagePath": _MESSAGE,
    "terminationMessagePolicy": _MESSAGE,
    "resources/requests/cpu": _RESOURCES,
    "resources/requests/memory": _RESOURCES,
    "resources/limits/memory": _RESOURCES,
    "resources/limits/nvidia.com/gpu": _RESOURCES,
    "resources/limits/google.com/tpu": _RESOURCES,
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
    metadata, spec = (_part(template, key, Mapping, where) for key in ("metadata", "spec"))
    _check_reserved({"metadata": metadata, "spec": spec}, _RESERVED_IN_POD, where)
    for kind in ("labels", "annotations"):
        for name in _part(metadata, kind, Mapping, where):
            if str(name).startswith("aerotrain/") or name in _RESERVED_LABELS:
                raise SpecError(
                    f"{where} sets metadata.{kind} {name!r}, which the launcher sets; leave it out"
                )
    _check_named(spec, where)
    kept = {key: metadata[key] for key in ("labels", "annotations") if key in metadata}
    return {"metadata": kept, "spec": _with_own_container(spec, where)}


def _with_own_container(spec: Template, where: str) -> Template:
    """The spec with the container that trains first, under the reserved name."""
    if not spec.get("containers"):
        return spec
    containers = spec["containers"]
    own = next((each for each in containers if each["name"] == CONTAINER), containers[0])
    here = f"{where}, in its container {own['name']!r},"
    _check_reserved(own, _RESERVED_IN_CONTAINER, here)
    for variable in own.get("env") or ():
        if is_reserved(variable["name"]):
            raise SpecError(
                f"{where} sets {variable['name']} in the environment of its container "
                f"{own['name']!r}, which the launcher sets for each replica; leave it out"
            )
    others = (each for each in containers if each is not own)
    return {**spec, "containers": [{**own, "name": CONTAINER}, *others]}


def _check_named(part: Template, where: str, path: str = "") -> None:
    """Check that all items of lists that are merged by name have one."""
    for key in _NAMED_BY.keys() & part.keys():
        for item in _part(part, key, list, where):
            if not isinstance(item, Mapping) or _NAMED_BY[key] not in item:
                raise SpecError(
                    f"{where} has {path}{key} without {_NAMED_BY[key]}: {item!r}; give it one"
                )
            if key in _MERGED:
                _check_named(item, where, f"{path}{item['name']}.")


def _check_reserved(part: Template, reserved: Mapping[str, str], where: str) -> None:
    for path, why in reserved.items():
        value: Any = part
        keys = path.split("/", 2)
        for key in keys:
            value = value.get(key) if isinstance(value, Mapping) else None
        if value is not None and (path, value) != ("spec/restartPolicy", "Never"):
            raise SpecError(f"{where} sets {'.'.join(keys)} to {value!r}, which {why}")


def _part(whole: Template, key: str, kind: type, where: str) -> Any:
    part = whole.get(key)
    if part is None:
        return {} if kind is Mapping else []
    if not isinstance(part, kind):
        raise SpecError(f"{where} has {key} {part!r}; write it as Kubernetes does")
    return part


def merge(base: Template, over: Template) -> dict[str, Any]:
    """``base`` with ``over`` on top; fields that ``over`` sets to null are removed.

    Neither is changed, but the result shares parts with both.
    """
    merged = dict(base)
    for key, value in over.items():
        if value is None:
            merged.pop(key, None)
        elif isinstance(value, Mapping):
            below = merged.get(key)
            merged[key] = merge(below if isinstance(below, Mapping) else {}, value)
        elif isinstance(value, Sequence) and not isinstance(value, str):
            merged[key] = _merged_list(key, merged.get(key) or [], value)
        else:
            merged[key] = value
    return merged


def _merged_list(key: str, base: Sequence[Any], over: Sequence[Any]) -> list[Any]:
    if key in _APPENDED:
        return [*base, *(each for each in over if each not in base)]
    if key not in _NAMED_BY:
        return list(over)
    by = _NAMED_BY[key]
    merged = {each[by]: each for each in base}
    for each in over:
        below = merged.get(each[by], {}) if key in _MERGED else {}
        merged[each[by]] = merge(below, each)
    return list(merged.values())
