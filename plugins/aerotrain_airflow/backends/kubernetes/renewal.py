"""Restarts of pods: the same manifest again, under the same name; and the group's event log.

The log is stored in the group's owner, and decisions are recorded before they are carried out. So
the next follower completes what a killed one has begun, and of two followers one decides.
"""

import asyncio
import copy
import json
import time
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from aerotrain.contract.errors import TemporaryError
from aerotrain.contract.event_log import Event, read
from aerotrain.contract.job import ReplicaName
from aerotrain_airflow.backends.base import GoneError
from aerotrain_airflow.backends.kubernetes.address import (
    GENERATION,
    INDEX_LABEL,
    ROLE_LABEL,
    Address,
    generation_of,
)
from aerotrain_airflow.backends.kubernetes.cluster import ApiError, Cluster
from aerotrain_airflow.backends.kubernetes.identity import (
    in_the_way,
    is_owned_by,
    reference_to,
    uid_of,
)
from aerotrain_airflow.controller.decision import Restart
from aerotrain_airflow.controller.history import compacted

Manifest = Mapping[str, Any]

#: Keys of the owner's data: the event log of the group, and a pod of each role.
EVENTS, TEMPLATES = "ledger.jsonl", "pods.json"

#: The limit of an event log in bytes, of the 1 MiB of a ConfigMap, which also has pods and job.
LIMIT = 256 * 1024

#: Seconds that a deleted pod may take. Then it is deleted by force, because its node does not
#: respond.
GOING = 20.0

_LOOK_EVERY = 0.5


def templates(pods: Iterable[Manifest]) -> str:
    """One pod per role, as the owner stores them for restarts."""
    by_role: dict[str, Manifest] = {}
    for pod in pods:
        by_role.setdefault(pod["metadata"]["labels"][ROLE_LABEL], pod)
    return json.dumps(by_role)


def pod_again(
    template: Manifest,
    address: Address,
    name: ReplicaName,
    generation: int,
    *,
    avoid: str = "",
    memory: float = 1.0,
) -> dict[str, Any]:
    """The pod of that replica at this restart count.

    ``avoid`` is a node on which it should not be placed, ``memory`` the factor for its memory.
    """
    pod = copy.deepcopy(dict(template))
    metadata, spec = pod["metadata"], pod["spec"]
    metadata["name"] = address.pod(name)
    metadata["labels"][INDEX_LABEL] = str(name.index)
    metadata.setdefault("annotations", {})[GENERATION] = str(generation)
    spec["hostname"] = str(name)
    container = spec["containers"][0]
    ours = {"AEROTRAIN_INDEX": str(name.index), "AEROTRAIN_GENERATION": str(generation)}
    kept = [each for each in container["env"] if each["name"] not in ours]
    container["env"] = kept + [{"name": each, "value": value} for each, value in ours.items()]
    if memory != 1.0:
        for part in container["resources"].values():
            if "memory" in part:
                part["memory"] = _more(part["memory"], memory)
    if avoid:
        _avoid(spec, avoid)
    return pod


def _avoid(spec: dict[str, Any], node: str) -> None:
    """Prefer other nodes, but allow this one if there is no other."""
    term = {"key": "kubernetes.io/hostname", "operator": "NotIn", "values": [node]}
    preference = {"weight": 100, "preference": {"matchExpressions": [term]}}
    affinity = spec.setdefault("affinity", {}).setdefault("nodeAffinity", {})
    affinity.setdefault("preferredDuringSchedulingIgnoredDuringExecution", []).append(preference)


def _more(quantity: str, factor: float) -> str:
    """A quantity of memory times ``factor``, in the same unit if that gives a whole number."""
    number = quantity.rstrip("KMGTPEkmi")
    unit = quantity[len(number) :]
    smaller = {"Ei": "Pi", "Pi": "Ti", "Ti": "Gi", "Gi": "Mi", "Mi": "Ki"}
    amount = float(number) * factor
    while amount != int(amount) and unit in smaller:
        amount, unit = amount * 1024, smaller[unit]
    return f"{int(amount)}{unit}"


class EventLog:
    """The event log of a group, in its owner."""

    def __init__(self, cluster: Cluster, owner: Manifest) -> None:
        self._cluster = cluster
        self._name = owner["metadata"]["name"]
        self._uid = uid_of(owner)
        self._version = owner["metadata"]["resourceVersion"]
        self._text = owner["data"].get(EVENTS, "")

    @property
    def events(self) -> list[Event]:
        return read(self._text.splitlines())

    async def append(self, events: Sequence[Event]) -> bool:
        """Append events; False if another process has added some, which are then in ``events``.

        Raises:
            GoneError: the group no longer exists.
        """
        both = compacted([*self.events, *events], LIMIT)
        text = "".join(f"{each.to_json()}\n" for each in both) if events else self._text
        while text != self._text:
            try:
                owner = await self._cluster.patch(
                    "ConfigMap", self._name, self._uid, self._version, data={EVENTS: text}
                )
            except ApiError as error:
                if error.status not in (404, 409):
                    raise
                found = await the_owner(self._cluster, self._name, self._uid)
                self._version = found["metadata"]["resourceVersion"]
                theirs = found["data"].get(EVENTS, "")
                if theirs != self._text:
                    self._text = theirs
                    return False
            else:
                self._version = owner["metadata"]["resourceVersion"]
                self._text = text
        return True


async def the_owner(cluster: Cluster, name: str, uid: str) -> dict[str, Any]:
    """The current owner of the group.

    Raises:
        GoneError: it is gone, or now belongs to another group.
    """
    found = await cluster.get("ConfigMap", name)
    if found is None or uid_of(found) != uid:
        raise GoneError(
            f"the set {name} is gone: its ConfigMap was deleted, or another try of the task has "
            "replaced it"
        )
    return found


class Renewal:
    """Recreates pods from the data in their group's owner."""

    def __init__(self, cluster: Cluster, address: Address, owner: Manifest) -> None:
        self._cluster = cluster
        self._address = address
        self._templates: dict[str, Manifest] = json.loads(owner["data"][TEMPLATES])
        self._reference = reference_to(owner)

    async def renew(self, name: ReplicaName, restart: Restart) -> None:
        """Restart the replica's pod to that restart count, even if another process has begun to.

        Raises:
            GoneError: the group no longer exists.
            TemporaryError: a pod of another group has the name, and remains.
        """
        count, until = restart.counts[name], time.monotonic() + GOING
        while True:
            # Checked first: pods of another group may have the same names.
            await the_owner(self._cluster, self._reference["name"], self._reference["uid"])
            there = await self._cluster.get("Pod", self._address.pod(name))
            is_late = time.monotonic() > until
            if there is None:
                pod = pod_again(
                    self._templates[name.role.value],
                    self._address,
                    name,
                    count,
                    avoid=restart.avoid.get(name, ""),
                    memory=restart.memory.get(name, 1.0),
                )
                if await self._create(pod):
                    return
            elif not is_owned_by(there, self._reference["uid"]):
                if is_late:
                    raise TemporaryError(in_the_way(there, self._address.namespace))
            elif generation_of(there) >= count:
                return
            else:
                force = is_late or name in restart.force
                if force or "deletionTimestamp" not in there["metadata"]:
                    await delete_pod(self._cluster, there, force=force)
            await asyncio.sleep(_LOOK_EVERY)

    async def _create(self, pod: dict[str, Any]) -> bool:
        """Create the pod; returns whether its name was free."""
        pod["metadata"]["ownerReferences"] = [self._reference]
        try:
            await self._cluster.create(pod)
        except ApiError as error:
            if error.reason != "AlreadyExists":
                raise
            return False
        return True


async def delete_pod(cluster: Cluster, pod: Manifest, *, force: bool) -> None:
    """Delete exactly this pod; another one that has its name meanwhile remains."""
    try:
        await cluster.delete("Pod", pod["metadata"]["name"], uid_of(pod), force=force)
    except ApiError as error:
        if error.status != 409:
            raise
