"""The owner of a group, a ConfigMap: the state that all followers share, with the event log.

Decisions are recorded in the log before they are carried out. So the next follower completes what a
killed one has begun, and of two followers one decides.
"""

import json
import time
from collections.abc import Mapping, Sequence
from typing import Any

from aerotrain.contract.event_log import Event, EventType, read
from aerotrain.launch.backend import GroupGoneError
from aerotrain.launch.restart_policy import compacted
from aerotrain_airflow.kubernetes.cluster import ApiError, Cluster
from aerotrain_airflow.kubernetes.identity import HOLDER, ROLE_LABEL, Handle, annotations
from aerotrain_airflow.kubernetes.plan import PodPlan

Manifest = Mapping[str, Any]

#: Keys of the owner's data: the event log, and a pod of each role for restarts.
EVENTS, TEMPLATES = "events.jsonl", "pods.json"

#: The limit of an event log in bytes, of the 1 MiB of a ConfigMap, which also has pods and job.
LIMIT = 256 * 1024


def owner_of(plan: PodPlan, holder: str) -> dict[str, Any]:
    """The manifest of the owner of the plan's group, with its holder."""
    metadata = plan.owner["metadata"]
    templates: dict[str, Manifest] = {}
    for pod in plan.pods:
        templates.setdefault(pod["metadata"]["labels"][ROLE_LABEL], pod)
    began = Event(event=EventType.START, at=time.time())
    return {
        **plan.owner,
        "metadata": {**metadata, "annotations": {**metadata["annotations"], HOLDER: holder}},
        "data": {
            **plan.owner["data"],
            TEMPLATES: json.dumps(templates),
            **log_data([began]),
        },
    }


async def read_owner(cluster: Cluster, handle: Handle) -> dict[str, Any]:
    """The current owner of the group.

    Raises:
        GroupGoneError: it does not exist, or belongs to another group.
    """
    owner = await cluster.get("ConfigMap", handle.name)
    if owner is None or not handle.is_of(owner):
        raise GroupGoneError(
            f"the replica group {handle} is gone: its ConfigMap was deleted by hand, or another "
            "try of the task has replaced it"
        )
    return owner


def events_of(owner: Manifest) -> list[Event]:
    """The event log in the owner of a group."""
    return read(owner["data"].get(EVENTS, "").splitlines())


def log_data(events: Sequence[Event]) -> dict[str, str]:
    """The event log as the owner's data, compacted to the limit."""
    return {EVENTS: "".join(f"{each.to_json()}\n" for each in compacted(events, LIMIT))}


class EventLog:
    """The event log of a group, in its owner; ``events`` are those that are known so far.

    Only the task try ``holder`` appends to it.
    """

    def __init__(self, cluster: Cluster, owner: Manifest, holder: str) -> None:
        self._cluster = cluster
        self._handle = Handle.of(owner)
        self._holder = holder
        self._take(owner)

    def _take(self, owner: Manifest) -> None:
        self._held_by = annotations(owner)[HOLDER]
        self._version = owner["metadata"]["resourceVersion"]
        self._text = owner["data"].get(EVENTS, "")
        self.events = events_of(owner)

    async def append(self, events: Sequence[Event]) -> bool:
        """Append events; False if another process has added some, which are then in ``events``.

        Raises:
            GroupGoneError: the group no longer exists, or another task try holds it.
        """
        if self._held_by != self._holder:
            raise GroupGoneError(f"{self._handle.name} was taken over by another try of its task")
        data = log_data([*self.events, *events])
        name, uid, known = self._handle.name, self._handle.uid, self._text
        while events:
            try:
                owner = await self._cluster.patch("ConfigMap", name, uid, self._version, data=data)
            except ApiError as error:
                if error.status not in (404, 409):
                    raise
                self._take(await read_owner(self._cluster, self._handle))
                if self._text != known:
                    return False
            else:
                self._take(owner)
                return True
        return True
