"""Whether all pods of a job together fit into the quotas of their namespace."""

from collections.abc import Iterable, Mapping
from decimal import Decimal
from typing import Any

from kubernetes.utils.quantity import parse_quantity

Manifest = Mapping[str, Any]

#: The keys of a quota that count pods. All others of pods are of the form ``limits.RESOURCE`` or
#: ``requests.RESOURCE``; these three are short for requests.
_COUNTS = ("pods", "count/pods")
_REQUESTS = ("cpu", "memory", "ephemeral-storage")


def too_small(
    pods: Iterable[tuple[Manifest, int]], quotas: Iterable[Manifest]
) -> list[tuple[str, str, str, str]]:
    """The quotas that can never admit all pods at once: name, key, what is needed, what is allowed.

    ``pods`` has each kind of pod, with all defaults that the API sets, and how many there are. What
    other pods use now is not counted, because it may be free at the start. Quotas for some pods
    only, with scopes, are left out.
    """
    counted = [(pod["spec"], count) for pod, count in pods]
    return [
        (quota["metadata"]["name"], key, _shown(key, needed), str(hard))
        for quota in quotas
        if not (quota["spec"].get("scopes") or quota["spec"].get("scopeSelector"))
        for key, hard in (quota["spec"].get("hard") or {}).items()
        if (needed := sum((_use(spec, key) * count for spec, count in counted), Decimal(0)))
        > parse_quantity(hard)
    ]


def _use(spec: Manifest, key: str) -> Decimal:
    """What one pod uses of the quota's ``key``; 0 for a key that does not concern pods."""
    if key in _COUNTS:
        return Decimal(1)
    part, _, resource = (f"requests.{key}" if key in _REQUESTS else key).partition(".")
    if part not in ("requests", "limits"):
        return Decimal(0)

    def of(container: Manifest) -> Decimal:
        amounts = (container.get("resources") or {}).get(part) or {}
        return Decimal(parse_quantity(amounts.get(resource, 0)))

    first = max(map(of, spec.get("initContainers") or ()), default=Decimal(0))
    return max(first, sum(map(of, spec["containers"]), Decimal(0)))


def _shown(key: str, amount: Decimal) -> str:
    is_bytes = key.endswith(("memory", "storage"))
    return f"{amount / 2**20:.0f}Mi" if is_bytes else f"{amount.normalize():f}"
