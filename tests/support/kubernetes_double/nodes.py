"""The double's only node: its resources, the images that it can pull, and how long things take."""

import re
from collections.abc import Mapping
from dataclasses import dataclass

from support.kubernetes_double.objects import Manifest

#: Resources that the node can give to one pod; it has no others. Pods are not added up.
CAPACITY = {"cpu": 64.0, "memory": 256 * 2.0**30, "ephemeral-storage": 2.0**40}

_FACTORS: Mapping[str, float] = {
    "": 1,
    "m": 1e-3,
    **{unit: 1000.0 ** (index + 1) for index, unit in enumerate("kMGTPE")},
    **{f"{unit}i": 1024.0 ** (index + 1) for index, unit in enumerate("KMGTPE")},
}


@dataclass(frozen=True, kw_only=True)
class Tempo:
    """Seconds that parts of the cluster take: those of a real Kubernetes 1.36, by about five."""

    schedule: float = 0.01  # until the scheduler has found a node
    create: float = 0.03  # until the kubelet has made the containers
    notice: float = 0.05  # from a container's end to `terminated` in its status
    phase: float = 0.2  # from there to the pod's phase
    collect: float = 0.05  # from the end of an owner to the deletion of its dependants
    removal: float = 0.05  # from the end of a deleted pod's containers to the end of the object
    bookmark: float = 10.0  # from one bookmark to the next; a real one: 60


def what_is_short(pod: Manifest) -> str:
    """The scheduler's message if the pod fits on no node, else an empty one."""
    asked: dict[str, float] = {}
    for container in pod["spec"]["containers"]:
        resources = container.get("resources") or {}
        for name, text in {**resources.get("limits", {}), **resources.get("requests", {})}.items():
            asked[name] = asked.get(name, 0) + quantity(str(text))
    missing = [name for name, amount in asked.items() if amount > CAPACITY.get(name, 0)]
    if not missing:
        return ""
    reasons = ", ".join(f"1 Insufficient {name}" for name in sorted(missing))
    return (
        f"0/1 nodes are available: {reasons}. no new claims to deallocate, preemption: 0/1 nodes "
        "are available: 1 Preemption is not helpful for scheduling."
    )


def what_cannot_be_pulled(pod: Manifest) -> tuple[str, str] | None:
    """An image of a registry that cannot exist (RFC 2606), with the runtime's message about it."""
    for container in pod["spec"]["containers"]:
        image = container["image"]
        registry = image.partition("/")[0].partition(":")[0]
        if registry.endswith(".invalid"):
            name, _, tag = image.partition("/")[2].partition(":")
            return image, (
                f'failed to pull and unpack image "{image}": failed to resolve image: failed to '
                f'do request: Head "https://{registry}/v2/{name}/manifests/{tag or "latest"}": '
                f"dial tcp: lookup {registry} on 10.0.0.53:53: no such host"
            )
    return None


def quantity(text: str) -> float:
    """A quantity such as ``500m`` or ``2Gi`` as a number."""
    matched = re.fullmatch(r"([0-9.]+)([a-zA-Z]*)", text)
    assert matched, f"{text!r} is no quantity"
    return float(matched[1]) * _FACTORS[matched[2]]
