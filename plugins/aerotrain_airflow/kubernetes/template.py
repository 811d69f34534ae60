"""Pod templates: what a platform team, or a role of a job, adds to the pods.

A template is a Pod in Kubernetes' own format; all fields except the reserved ones are used. Its
container ``replica``, or else its first, is the one that trains; others are side-cars.
"""

import json
from collections.abc import Iterator, Mapping, Sequence
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

#: What a template may not set, by its path in a pod, and why.
_OWNED_BY_POD: Mapping[tuple[str, ...], str] = {
    ("metadata", "name"): _NAMES,
    ("metadata", "namespace"): "is set in [aerotrain] namespace; leave it out",
    ("metadata", "generateName"): _NAMES,
    ("metadata", "ownerReferences"): "ties the pods to their job; leave it out",
    ("metadata", "finalizers"): "would keep pods after their job; leave it out",
    ("spec", "hostname"): _NAMES,
    ("spec", "subdomain"): _NAMES,
    ("spec", "setHostnameAsFQDN"): _NAMES,
    ("spec", "hostnameOverride"): _NAMES,
    ("spec", "hostNetwork"): "would open TensorFlow's port to other hosts; leave it out",
    ("spec", "restartPolicy"): "is Never, because the launcher decides on restarts; leave it out",
    ("spec", "activeDeadlineSeconds"): "comes from the job; set the job's deadlines instead",
}
_OWNED_BY_CONTAINER: Mapping[tuple[str, ...], str] = {
    ("command",): _START,
    ("args",): _START,
    ("workingDir",): _START,
    ("terminationMessagePath",): _MESSAGE,
    ("terminationMessagePolicy",): _MESSAGE,
    ("resources", "requests", "cpu"): _RESOURCES,
    ("resources", "requests", "memory"): _RESOURCES,
    ("resources", "limits", "memory"): _RESOURCES,
    ("resources", "limits", "nvidia.com/gpu"): _RESOURCES,
    ("resources", "limits", "google.com/tpu"): _RESOURCES,
}

#: Values of reserved fields that a template may repeat, because they are the same.
_HARMLESS: Mapping[tuple[str, ...], object] = {("spec", "restartPolicy"): "Never"}

_OWNED_LABELS = ("app.kubernetes.io/name", "app.kubernetes.io/managed-by")


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
    metadata = _part(template, "metadata", Mapping, where)
    spec = _part(template, "spec", Mapping, where)
    _refuse_owned({"metadata": metadata, "spec": spec}, _OWNED_BY_POD, where)
    for kind in ("labels", "annotations"):
        for name in _part(metadata, kind, Mapping, where):
            if str(name).startswith("aerotrain/") or name in _OWNED_LABELS:
                raise SpecError(
                    f"{where} sets metadata.{kind} {name!r}, which the launcher sets; leave it out"
                )
    return {
        "metadata": {key: metadata[key] for key in ("labels", "annotations") if key in metadata},
        "spec": {**spec, **_containers(spec, where)},
    }


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


def _containers(spec: Template, where: str) -> dict[str, Any]:
    """The lists of the spec that are merged by name; checks that each item has one."""
    lists = dict(_named(spec, where, ""))
    if "containers" not in lists:
        return lists
    containers = lists["containers"]
    ours = next((each for each in containers if each["name"] == CONTAINER), containers[0])
    _refuse_owned(ours, _OWNED_BY_CONTAINER, f"{where}, in its container {ours['name']!r},")
    for each in ours.get("env") or ():
        if is_reserved(each["name"]):
            raise SpecError(
                f"{where} sets {each['name']} in the environment of its container "
                f"{ours['name']!r}, which the launcher sets for each replica; leave it out"
            )
    lists["containers"] = [
        {**ours, "name": CONTAINER},
        *(each for each in containers if each is not ours),
    ]
    return lists


def _named(spec: Template, where: str, path: str) -> Iterator[tuple[str, list[Any]]]:
    for key, by in _NAMED_BY.items():
        if spec.get(key):
            items = _part(spec, key, list, where)
            for each in items:
                if not isinstance(each, Mapping) or by not in each:
                    raise SpecError(f"{where} has {path}{key} without {by}: {each!r}; give it one")
                if key in _MERGED:
                    dict(_named(each, where, f"{path}{each['name']}."))
            yield key, items


def _refuse_owned(part: Template, owned: Mapping[tuple[str, ...], str], where: str) -> None:
    for path, why in owned.items():
        value: Any = part
        for key in path:
            value = value.get(key) if isinstance(value, Mapping) else None
        if value is not None and value != _HARMLESS.get(path):
            raise SpecError(f"{where} sets {'.'.join(path)} to {value!r}, which {why}")


def _part(of: Template, key: str, kind: type, where: str) -> Any:
    part = of.get(key)
    if part is None:
        return {} if kind is Mapping else []
    if not isinstance(part, kind):
        raise SpecError(f"{where} has {key} {part!r}; write it as Kubernetes does")
    return part
